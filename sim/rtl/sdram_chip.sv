// An SDRAM chip for simulation, after the data sheets of IS42S16160 and AS4C32M16, which checks its controller.
//
// Contract
//   * Commands at each rising edge of `clk`, as in the data sheets: ACTIVATE, READ, WRITE, PRECHARGE (one bank or all), AUTO
//     REFRESH, MODE REGISTER SET. No auto precharge, no burst stop, no self refresh.
//   * Bursts of 1, 2, 4 or 8 words in sequential order. A new access, or a precharge of its bank, ends a burst.
//   * A word of a read is at `dq_o` from CL - 1 edges after its command to the next edge; DQM hides it with a latency of two.
//   * Every violation of a time or of an order is counted in `errors`; the first ten are printed. Times are in ns; PERIOD and
//     REFRESH_INTERVAL are in ps.
//   * Words that were neither written nor in the plusarg `sdram=FILE` of $readmemh are unknown in simulators with unknown values.
//
// Simulated rows are the first 2^ROW_BITS of each bank; an access to others is a violation.

module sdram_chip #(
    parameter integer ROW_BITS = 13,
    parameter integer COLUMN_BITS = 9,
    parameter integer PERIOD = 10_000,          // ps of the clock
    parameter integer POWER_UP = 200_000, T_RC = 63, T_RFC = 63, T_RCD = 21, T_RP = 21, T_RAS = 42, T_RAS_MOST = 100_000,
    parameter integer T_RRD = 14, T_WR = 14, MODE_CYCLES = 2, FASTEST_CL2 = 10_000, FASTEST_CL3 = 7_000,
    parameter integer REFRESH_INTERVAL = 7_812_500, POSTPONED = 8, FIRST_REFRESHES = 8
) (
    input  wire        clk,
    input  wire        cke,
    input  wire        cs_n,
    input  wire        ras_n,
    input  wire        cas_n,
    input  wire        we_n,
    input  wire [1:0]  ba,
    input  wire [12:0] a,
    input  wire [1:0]  dqm,
    input  wire [15:0] dq_i,
    output reg  [15:0] dq_o,
    output reg  [1:0]  dq_oe,       // bytes that the chip drives
    output reg  [31:0] errors,
    output reg  [31:0] refreshes,
    output reg  [31:0] activations
);
    localparam [2:0] MODE = 3'b000, REFRESH = 3'b001, PRECHARGE = 3'b010, ACTIVATE = 3'b011, WRITE = 3'b100, READ = 3'b101;
    localparam integer WORDS = 1 << (ROW_BITS + 2 + COLUMN_BITS);
    localparam [63:0] NEVER = 64'h8000_0000_0000_0000;     // longer ago than all times

    reg [15:0] memory [0:WORDS-1];

    reg [63:0] now;                                         // ps since power-up
    reg [63:0] activated [0:3], precharged [0:3], written [0:3];
    reg [63:0] last_activate, last_refresh;
    integer since_mode, since_owed, owed;                   // cycles, ps, refreshes
    reg        open [0:3];
    reg [12:0] row [0:3];
    reg        configured, precharged_once;
    reg [2:0]  latency;
    reg [3:0]  length;
    // The burst that transfers words
    reg        reading, writing;
    reg [1:0]  bank;
    reg [12:0] column;
    reg [3:0]  left;
    // Words on their way to the pins; bit 0 is the next one.
    reg        due [0:3];
    reg [15:0] word [0:3];
    reg [1:0]  dqm_before;
    reg [2:0]  command;
    reg        driven;
    integer k, place;
    string contents;

    task automatic violation(input [8*48-1:0] rule);
        begin
            if (errors < 10) $display("sdram_chip: %0d ns: %0s", now / 1000, rule);
            errors = errors + 1;
        end
    endtask

    function automatic early(input [63:0] since, input integer ns);
        early = since != NEVER && now - since < 64'(ns) * 1000;
    endfunction

    task automatic settled;     // the checks of every command except NOP
        begin
            if (now < 64'(POWER_UP) * 1000) violation("command before the end of power-up");
            if (early(last_refresh, T_RFC)) violation("tRFC");
            if (since_mode < MODE_CYCLES) violation("tMRD");
        end
    endtask

    task automatic close(input [1:0] which);
        if (open[which]) begin
            if (early(activated[which], T_RAS)) violation("tRAS");
            if (!early(activated[which], T_RAS_MOST)) violation("row open for longer than tRAS allows");
            if (early(written[which], T_WR)) violation("tWR");
            open[which] = 0;
            precharged[which] = now;
            if (bank == which) left = 0;
        end
    endtask

    task automatic begin_burst;
        begin
            settled;
            if (!configured) violation("access before the mode register is set");
            if (!open[ba]) violation("access to a closed bank");
            else if (early(activated[ba], T_RCD)) violation("tRCD");
            if (a[10]) violation("auto precharge is not simulated");
            if (a >= 1 << COLUMN_BITS) violation("column outside the chip");
            bank = ba;
            column = a;
            left = length;
        end
    endtask

    function automatic [31:0] index(input [12:0] at);
        index = (32'(row[bank]) << (COLUMN_BITS + 2)) | (32'(bank) << COLUMN_BITS) | 32'(at);
    endfunction

    initial begin
        if ($value$plusargs("sdram=%s", contents)) $readmemh(contents, memory);
        now = 0; errors = 0; refreshes = 0; activations = 0; configured = 0; precharged_once = 0;
        last_activate = NEVER; last_refresh = NEVER; since_mode = MODE_CYCLES; since_owed = 0; owed = 0;
        latency = 3; length = 1; reading = 0; writing = 0; bank = 0; column = 0; left = 0;
        dqm_before = 0; dq_oe = 0; dq_o = 0; driven = 0;
        for (k = 0; k < 4; k = k + 1) begin
            activated[k] = NEVER; precharged[k] = NEVER; written[k] = NEVER; open[k] = 0; row[k] = 0; due[k] = 0; word[k] = 0;
        end
    end

    always @(posedge clk) begin
        now = now + 64'(PERIOD);
        since_mode = since_mode + 1;
        command = {ras_n, cas_n, we_n};
        if (cke !== 1'b1) violation("CKE is not high");
        else if (!cs_n) case (command)
            ACTIVATE: begin
                settled;
                if (!configured) violation("ACTIVATE before the mode register is set");
                if (open[ba]) violation("ACTIVATE of an open bank");
                if (early(precharged[ba], T_RP)) violation("tRP");
                if (early(activated[ba], T_RC)) violation("tRC");
                if (early(last_activate, T_RRD)) violation("tRRD");
                if (a >= 1 << ROW_BITS) violation("row outside the chip");
                open[ba] = 1; row[ba] = a; activated[ba] = now; last_activate = now;
                activations = activations + 1;
            end
            READ: begin
                begin_burst;
                reading = 1; writing = 0;
            end
            WRITE: begin
                begin_burst;
                reading = 0; writing = 1;
                if (driven || dq_oe != 0) violation("WRITE while the chip drives the data");
            end
            PRECHARGE: begin
                settled;
                if (a[10]) begin
                    precharged_once = 1;
                    for (k = 0; k < 4; k = k + 1) close(2'(k));
                end else close(ba);
            end
            REFRESH: begin
                settled;
                if (!precharged_once) violation("refresh before all banks are precharged");
                for (k = 0; k < 4; k = k + 1) begin
                    if (open[k]) violation("refresh with an open bank");
                    if (early(precharged[k], T_RP)) violation("tRP before a refresh");
                end
                last_refresh = now;
                if (owed > -POSTPONED) owed = owed - 1;
                refreshes = refreshes + 1;
            end
            MODE: begin
                settled;
                if (refreshes < FIRST_REFRESHES) violation("too few refreshes before the mode register is set");
                for (k = 0; k < 4; k = k + 1) if (open[k]) violation("mode register set with an open bank");
                latency = a[6:4];
                length = 4'd1 << a[2:0];
                if (a[2:0] > 3 || a[3] || a[12:7] != 0 || ba != 0) violation("mode is not simulated");
                if (!(latency == 3 && PERIOD >= FASTEST_CL3 || latency == 2 && PERIOD >= FASTEST_CL2))
                    violation("CAS latency and clock do not fit");
                configured = 1;
                since_mode = 0;
            end
            default: if (command == 3'b110) violation("burst stop is not simulated");
        endcase

        // Refreshes that are owed
        if (configured) begin
            since_owed = since_owed + PERIOD;
            if (since_owed >= REFRESH_INTERVAL) begin
                since_owed = since_owed - REFRESH_INTERVAL;
                owed = owed + 1;
                if (owed > POSTPONED) begin
                    violation("refresh is late");
                    owed = 0;
                end
            end
        end

        // Words
        driven = dq_oe != 0;
        for (k = 0; k < 3; k = k + 1) begin
            due[k] = due[k+1];
            word[k] = word[k+1];
        end
        due[3] = 0;
        if (left != 0 && open[bank]) begin
            if (reading) begin
                due[latency-1] = 1;
                word[latency-1] = memory[index(column)];
            end else if (writing) begin
                place = index(column);
                if (!dqm[0]) memory[place][7:0] = dq_i[7:0];
                if (!dqm[1]) memory[place][15:8] = dq_i[15:8];
                written[bank] = now;
            end
            left = left - 1;
            // The burst wraps at its length.
            column = (column & ~(13'(length) - 13'd1)) | ((column + 13'd1) & (13'(length) - 13'd1));
        end
        dq_o = word[0];
        dq_oe = due[0] ? ~dqm_before : 2'b00;
        dqm_before = dqm;
    end
endmodule
