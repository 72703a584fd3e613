// Host memory for simulation: an AXI4 slave with a settable latency, random pauses and faults, which also checks the
// master's transfers.
//
// Contract
//   * Incrementing bursts of full-width beats, 1 to 256. Responses are in order; IDs are returned unchanged.
//   * Reads: 32 bursts outstanding, one beat a cycle; the first beat is valid `latency` cycles after its AR handshake.
//   * Writes: 16 bursts outstanding, one beat a cycle; B is valid `write_latency` cycles after the handshake of WLAST.
//     A write reaches the memory with its B, not before: earlier reads return the old contents.
//   * The response to a beat outside the memory is DECERR, in the error range SLVERR; neither changes the memory.
//   * Every violation of a rule by the master is counted in `errors`; the first ten are printed. Unknown data with its strobe
//     set is a violation.
//   * Words that are neither in `memory=FILE` nor written are 0.
//
// Plusargs (decimal, `*_address` hexadecimal)
//   memory=FILE          initial contents for $readmemh, one bus beat a word
//   dump=FILE            file to which `bd_dump` writes the words bd_address..bd_last
//   latency=N            1 and up; default 1
//   write_latency=N      default: `latency`
//   beat_time=N          time of a beat in 1/256 cycles, of reads and writes together, as of one DRAM; default 0: one beat a
//                        cycle in each direction
//   burst_time=N         time before each burst in 1/256 cycles, such as a row miss; needs `beat_time`; default 0
//   pause_percent=N      probability of a pause on each channel in each cycle; default 0
//   pause_seed=N         seed of the pauses
//   error_address=A      first byte address of the error range (hexadecimal) ...
//   error_last=A         ... and its last one; default: the same beat
//   hang_after=N         the first N transactions are normal; the responses to later ones are delayed ...
//   hang_cycles=N        ... by this number of cycles; default: without end
//
// Of several memories, each has a NUMBER of 0 or more, files with the suffix `.NUMBER`, and its own random pauses.

module axi_memory #(
    parameter integer DATA_WIDTH = 256,
    parameter integer ADDRESS_WIDTH = 32,
    parameter integer ID_WIDTH = 1,
    parameter integer BYTES = 1 << 25,
    parameter integer NUMBER = -1
) (
    input  wire                      aclk,
    input  wire                      aresetn,

    input  wire [ID_WIDTH-1:0]       s_axi_awid,
    input  wire [ADDRESS_WIDTH-1:0]  s_axi_awaddr,
    input  wire [7:0]                s_axi_awlen,
    input  wire [2:0]                s_axi_awsize,
    input  wire [1:0]                s_axi_awburst,
    input  wire                      s_axi_awvalid,
    output reg                       s_axi_awready,
    input  wire [DATA_WIDTH-1:0]     s_axi_wdata,
    input  wire [DATA_WIDTH/8-1:0]   s_axi_wstrb,
    input  wire                      s_axi_wlast,
    input  wire                      s_axi_wvalid,
    output reg                       s_axi_wready,
    output reg  [ID_WIDTH-1:0]       s_axi_bid,
    output reg  [1:0]                s_axi_bresp,
    output reg                       s_axi_bvalid,
    input  wire                      s_axi_bready,
    input  wire [ID_WIDTH-1:0]       s_axi_arid,
    input  wire [ADDRESS_WIDTH-1:0]  s_axi_araddr,
    input  wire [7:0]                s_axi_arlen,
    input  wire [2:0]                s_axi_arsize,
    input  wire [1:0]                s_axi_arburst,
    input  wire                      s_axi_arvalid,
    output reg                       s_axi_arready,
    output reg  [ID_WIDTH-1:0]       s_axi_rid,
    output reg  [DATA_WIDTH-1:0]     s_axi_rdata,
    output reg  [1:0]                s_axi_rresp,
    output reg                       s_axi_rlast,
    output reg                       s_axi_rvalid,
    input  wire                      s_axi_rready,

    // Back door, in words of one beat; acts at the clock edge.
    input  wire [31:0]               bd_address,
    input  wire [31:0]               bd_last,
    input  wire [DATA_WIDTH-1:0]     bd_wdata,
    input  wire                      bd_write,
    input  wire                      bd_read,
    input  wire                      bd_dump,
    output reg  [DATA_WIDTH-1:0]     bd_rdata,
    input  wire                      bd_reset,      // only the master is in reset: it may withdraw its offers

    output reg  [31:0]               errors,
    output reg  [63:0]               cycle
);
    localparam integer BEAT = DATA_WIDTH / 8;
    localparam integer SHIFT = $clog2(BEAT);
    localparam integer WORDS = BYTES / BEAT;
    localparam integer READS = 32;
    localparam integer WRITES = 16;
    localparam [1:0] OKAY = 2'b00, SLVERR = 2'b10, DECERR = 2'b11, INCR = 2'b01;

    reg [DATA_WIDTH-1:0] memory [0:WORDS-1];

    // Settings
    string memory_file, dump_file;
    reg [63:0] latency, write_latency, beat_time, burst_time, hang_after, hang_cycles, error_address, error_last;
    reg [63:0] random;
    reg [8:0] pause_threshold;
    integer percent, seed, place;

    initial begin
        s_axi_awready = 0; s_axi_wready = 0; s_axi_bvalid = 0; s_axi_arready = 0; s_axi_rvalid = 0;
        errors = 0; cycle = 0;
        if (!$value$plusargs("latency=%d", latency) || latency == 0) latency = 1;
        if (!$value$plusargs("write_latency=%d", write_latency) || write_latency == 0) write_latency = latency;
        if (!$value$plusargs("beat_time=%d", beat_time)) beat_time = 0;
        if (!$value$plusargs("burst_time=%d", burst_time)) burst_time = 0;
        if (!$value$plusargs("hang_after=%d", hang_after)) hang_after = 64'hFFFF_FFFF_FFFF_FFFF;
        if (!$value$plusargs("hang_cycles=%d", hang_cycles)) hang_cycles = 64'h0100_0000_0000_0000;
        if (!$value$plusargs("error_address=%h", error_address)) error_address = 64'hFFFF_FFFF_FFFF_FFFF;
        if (!$value$plusargs("error_last=%h", error_last)) error_last = error_address;
        if (!$value$plusargs("pause_percent=%d", percent)) percent = 0;
        if (!$value$plusargs("pause_seed=%d", seed)) seed = 1;
        pause_threshold = 9'((percent * 256 + 99) / 100);
        if (NUMBER >= 0) seed = seed + NUMBER;
        random = {32'h9E37_79B9, seed};
        if (!$value$plusargs("dump=%s", dump_file)) dump_file = "memory.hex";
        if (NUMBER >= 0) dump_file = $sformatf("%s.%0d", dump_file, NUMBER);
`ifndef VERILATOR  // Verilator initialises the memory with zeros
        for (place = 0; place < WORDS; place = place + 1) memory[place] = 0;
`endif
        if ($value$plusargs("memory=%s", memory_file)) begin
            if (NUMBER >= 0) memory_file = $sformatf("%s.%0d", memory_file, NUMBER);
            $readmemh(memory_file, memory);
        end
    end

    // Read bursts: `read_count` entries from `read_head` on. The first entry's address and remaining beats are updated per beat.
    reg [ADDRESS_WIDTH-1:0] read_address [0:READS-1];
    reg [7:0]               read_left    [0:READS-1];
    reg [ID_WIDTH-1:0]      read_id      [0:READS-1];
    reg [63:0]              read_due     [0:READS-1];
    reg [4:0] read_head, read_tail;
    reg [5:0] read_count;

    // Write bursts: `write_count` entries from `write_head` on. The last `write_open` entries lack data, which is stored from
    // entry `write_fill` on. The data of burst k is in beats 256 k and up.
    reg [ADDRESS_WIDTH-1:0] write_address [0:WRITES-1];
    reg [7:0]               write_length  [0:WRITES-1];
    reg [ID_WIDTH-1:0]      write_id      [0:WRITES-1];
    reg                     write_hung    [0:WRITES-1];
    reg [63:0]              write_due     [0:WRITES-1];
    reg [DATA_WIDTH-1:0]    write_data    [0:WRITES*256-1];
    reg [BEAT-1:0]          write_strobe  [0:WRITES*256-1];
    reg [3:0] write_head, write_tail, write_fill;
    reg [4:0] write_count, write_open;
    reg [7:0] write_beat;

    reg [63:0] accepted;
    reg [63:0] busy;     // the memory transfers until this time, in 1/256 cycles
    reg read_begun;      // the first read burst has waited for `burst_time`
    reg [ADDRESS_WIDTH-1:0] address;
    reg [31:0] word;
    reg [1:0] response, answer;
    reg unknown;
    reg pause_ar, pause_r, pause_aw, pause_w, pause_b;
    reg [8:0] beat;
    integer lane;

    // Offers that the master must hold until the handshake
    localparam integer ADDRESS_BITS = ID_WIDTH + ADDRESS_WIDTH + 13;
    wire [ADDRESS_BITS-1:0] aw_payload = {s_axi_awid, s_axi_awaddr, s_axi_awlen, s_axi_awsize, s_axi_awburst};
    wire [ADDRESS_BITS-1:0] ar_payload = {s_axi_arid, s_axi_araddr, s_axi_arlen, s_axi_arsize, s_axi_arburst};
    reg [ADDRESS_BITS-1:0] aw_held, ar_held;
    reg [DATA_WIDTH-1:0] w_held;
    reg [BEAT:0] w_held_control;
    reg aw_waits, w_waits, ar_waits;

    task automatic violation(input [8*48-1:0] rule);
        begin
            if (errors < 10) $display("axi_memory: cycle %0d: %0s", cycle, rule);
            errors = errors + 1;
        end
    endtask

    task automatic start_burst;
        busy = busy + burst_time > cycle << 8 ? busy + burst_time : cycle << 8;
    endtask

    task automatic check_burst(input [ADDRESS_WIDTH-1:0] first, input [7:0] length, input [2:0] size, input [1:0] burst);
        begin
            if (burst !== INCR) violation("burst type is not INCR");
            if (size !== 3'(SHIFT)) violation("beats are narrower than the bus");
            if (({20'd0, first[11:SHIFT], {SHIFT{1'b0}}} + ({24'd0, length} + 1) * BEAT) > 4096)
                violation("burst crosses a 4 KiB boundary");
        end
    endtask

    function automatic [1:0] judge(input [ADDRESS_WIDTH-1:0] beat_address);
        reg [63:0] first;
        begin
            first = 64'(beat_address) & ~64'(BEAT - 1);
            if (first >= 64'(BYTES)) judge = DECERR;
            else if (first <= error_last && first + 64'(BEAT - 1) >= error_address) judge = SLVERR;
            else judge = OKAY;
        end
    endfunction

    always @(posedge aclk) begin
        cycle <= cycle + 1;

        // Back door
        if (bd_write) memory[bd_address] = bd_wdata;
        if (bd_read) bd_rdata <= memory[bd_address];
        if (bd_dump) $writememh(dump_file, memory, bd_address, bd_last);

        if (!aresetn) begin
            s_axi_awready <= 0; s_axi_wready <= 0; s_axi_bvalid <= 0; s_axi_arready <= 0; s_axi_rvalid <= 0;
            read_head = 0; read_tail = 0; read_count = 0;
            write_head = 0; write_tail = 0; write_fill = 0; write_count = 0; write_open = 0; write_beat = 0;
            aw_waits = 0; w_waits = 0; ar_waits = 0;
            accepted = 0;
            busy = 0; read_begun = 0;
        end else begin
            if (pause_threshold != 0) begin
                random = random ^ (random << 13);
                random = random ^ (random >> 7);
                random = random ^ (random << 17);
            end
            pause_ar = {1'b0, random[7:0]} < pause_threshold;
            pause_r = {1'b0, random[15:8]} < pause_threshold;
            pause_aw = {1'b0, random[23:16]} < pause_threshold;
            pause_w = {1'b0, random[31:24]} < pause_threshold;
            pause_b = {1'b0, random[39:32]} < pause_threshold;

            // Rules
            if ((s_axi_awvalid ^ s_axi_wvalid ^ s_axi_bready ^ s_axi_arvalid ^ s_axi_rready) === 1'bx)
                violation("VALID or READY is unknown");
            if (aw_waits && !(s_axi_awvalid && aw_payload === aw_held)) violation("AW changed before AWREADY");
            if (ar_waits && !(s_axi_arvalid && ar_payload === ar_held)) violation("AR changed before ARREADY");
            if (w_waits && !(s_axi_wvalid && s_axi_wdata === w_held && {s_axi_wlast, s_axi_wstrb} === w_held_control))
                violation("W changed before WREADY");
            aw_waits = s_axi_awvalid && !s_axi_awready;
            ar_waits = s_axi_arvalid && !s_axi_arready;
            w_waits = s_axi_wvalid && !s_axi_wready;
            if (aw_waits) aw_held = aw_payload;
            if (ar_waits) ar_held = ar_payload;
            if (bd_reset === 1'b1) begin
                aw_waits = 0; w_waits = 0; ar_waits = 0;
            end
            if (w_waits) begin
                w_held = s_axi_wdata;
                w_held_control = {s_axi_wlast, s_axi_wstrb};
            end

            // AW
            if (s_axi_awvalid && s_axi_awready) begin
                check_burst(s_axi_awaddr, s_axi_awlen, s_axi_awsize, s_axi_awburst);
                write_address[write_tail] = s_axi_awaddr;
                write_length[write_tail] = s_axi_awlen;
                write_id[write_tail] = s_axi_awid;
                write_hung[write_tail] = accepted >= hang_after;
                accepted = accepted + 1;
                write_tail = write_tail + 1;
                write_count = write_count + 1;
                write_open = write_open + 1;
            end
            s_axi_awready <= write_count < 5'(WRITES) && !pause_aw;

            // W
            if (s_axi_wvalid && s_axi_wready) begin
                write_data[{write_fill, write_beat}] = s_axi_wdata;
                write_strobe[{write_fill, write_beat}] = s_axi_wstrb;
                unknown = 0;
                if ((^s_axi_wdata) === 1'bx)
                    for (lane = 0; lane < BEAT; lane = lane + 1)
                        if (s_axi_wstrb[lane] !== 1'b0 && (^s_axi_wdata[8*lane +: 8]) === 1'bx) unknown = 1;
                if (unknown) violation("WDATA is unknown");
                if (s_axi_wlast !== (write_beat == write_length[write_fill])) violation("WLAST at the wrong beat");
                if (write_beat == write_length[write_fill]) begin
                    write_due[write_fill] = cycle + write_latency - 1 + (write_hung[write_fill] ? hang_cycles : 0);
                    if (beat_time != 0) begin
                        start_burst;
                        busy = busy + (64'(write_length[write_fill]) + 1) * beat_time;
                        if (busy >> 8 > write_due[write_fill]) write_due[write_fill] = busy >> 8;
                    end
                    write_beat = 0;
                    write_fill = write_fill + 1;
                    write_open = write_open - 1;
                end else write_beat = write_beat + 1;
            end
            s_axi_wready <= write_open != 0 && !pause_w;

            // B, and the write to the memory
            if (!s_axi_bvalid || s_axi_bready) begin
                s_axi_bvalid <= 0;
                if (write_count != write_open && cycle >= write_due[write_head] && !pause_b) begin
                    answer = OKAY;
                    address = write_address[write_head];
                    for (beat = 0; beat <= {1'b0, write_length[write_head]}; beat = beat + 1) begin
                        response = judge(address);
                        word = 32'(address >> SHIFT);
                        if (response != OKAY) answer = response;
                        else if (&write_strobe[{write_head, beat[7:0]}]) memory[word] = write_data[{write_head, beat[7:0]}];
                        else for (lane = 0; lane < BEAT; lane = lane + 1)
                            if (write_strobe[{write_head, beat[7:0]}][lane])
                                memory[word][8*lane +: 8] = write_data[{write_head, beat[7:0]}][8*lane +: 8];
                        address = address + ADDRESS_WIDTH'(BEAT);
                    end
                    s_axi_bid <= write_id[write_head];
                    s_axi_bresp <= answer;
                    s_axi_bvalid <= 1;
                    write_head = write_head + 1;
                    write_count = write_count - 1;
                end
            end

            // AR
            if (s_axi_arvalid && s_axi_arready) begin
                check_burst(s_axi_araddr, s_axi_arlen, s_axi_arsize, s_axi_arburst);
                read_address[read_tail] = s_axi_araddr;
                read_left[read_tail] = s_axi_arlen;
                read_id[read_tail] = s_axi_arid;
                read_due[read_tail] = cycle + latency - 1 + (accepted >= hang_after ? hang_cycles : 0);
                accepted = accepted + 1;
                read_tail = read_tail + 1;
                read_count = read_count + 1;
            end

            // R
            if (!s_axi_rvalid || s_axi_rready) begin
                s_axi_rvalid <= 0;
                if (beat_time != 0 && read_count != 0 && cycle >= read_due[read_head] && !read_begun) begin
                    start_burst;
                    read_begun = 1;
                end
                if (read_count != 0 && cycle >= read_due[read_head] && !pause_r
                    && (beat_time == 0 || busy + beat_time <= (cycle + 1) << 8)) begin
                    busy = busy + beat_time > cycle << 8 ? busy + beat_time : cycle << 8;
                    address = read_address[read_head];
                    response = judge(address);
                    word = 32'(address >> SHIFT);
                    s_axi_rid <= read_id[read_head];
                    s_axi_rresp <= response;
                    s_axi_rdata <= response == OKAY ? memory[word] : {BEAT / 4{32'hDEAD_BEEF}};
                    s_axi_rlast <= read_left[read_head] == 0;
                    s_axi_rvalid <= 1;
                    if (read_left[read_head] == 0) begin
                        read_begun = 0;
                        read_head = read_head + 1;
                        read_count = read_count - 1;
                    end else begin
                        read_address[read_head] = address + ADDRESS_WIDTH'(BEAT);
                        read_left[read_head] = read_left[read_head] - 1;
                    end
                end
            end
            s_axi_arready <= read_count < 6'(READS) && !pause_ar;
        end
    end
endmodule
