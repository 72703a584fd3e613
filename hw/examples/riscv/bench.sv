// The system with its RAM, and a terminal at its serial line. Ends when the firmware does, or after +limit=CYCLES.

module bench #(
    parameter integer BUS_WIDTH = 64
) (
    input wire clk,
    input wire rst_n
);
    localparam integer RAM_WIDTH = 21;          // address bits of the RAM: 2 MiB at 0x4000_0000
    localparam [31:0] RAM = 32'h4000_0000;
    localparam [7:0] BIT = 16;                  // cycles of a bit on the line

    wire                   line, ended;
    wire [31:0]            status, errors;
    wire [63:0]            cycle;

    // The wires have the names of the system's ports.
    wire                   m_axi_awvalid, m_axi_awready, m_axi_wlast, m_axi_wvalid, m_axi_wready, m_axi_bvalid, m_axi_bready;
    wire                   m_axi_arvalid, m_axi_arready, m_axi_rlast, m_axi_rvalid, m_axi_rready;
    wire [2:0]             m_axi_awid, m_axi_bid, m_axi_arid, m_axi_rid, m_axi_awsize, m_axi_arsize;
    wire [31:0]            m_axi_awaddr, m_axi_araddr;
    wire [7:0]             m_axi_awlen, m_axi_arlen;
    wire [1:0]             m_axi_awburst, m_axi_bresp, m_axi_arburst, m_axi_rresp;
    wire [BUS_WIDTH-1:0]   m_axi_wdata, m_axi_rdata;
    wire [BUS_WIDTH/8-1:0] m_axi_wstrb;

    system #(.BUS_WIDTH(BUS_WIDTH)) system (.*);

    // The memory starts at address 0. The bit above its last address bit is 1 for all addresses outside it.
    wire [RAM_WIDTH:0] write_place = {m_axi_awaddr[31:RAM_WIDTH] != RAM[31:RAM_WIDTH], m_axi_awaddr[RAM_WIDTH-1:0]};
    wire [RAM_WIDTH:0] read_place = {m_axi_araddr[31:RAM_WIDTH] != RAM[31:RAM_WIDTH], m_axi_araddr[RAM_WIDTH-1:0]};

    axi_memory #(
        .DATA_WIDTH(BUS_WIDTH), .ADDRESS_WIDTH(RAM_WIDTH + 1), .ID_WIDTH(3), .BYTES(1 << RAM_WIDTH)
    ) memory (
        .aclk(clk), .aresetn(rst_n),
        .s_axi_awid(m_axi_awid), .s_axi_awaddr(write_place), .s_axi_awlen(m_axi_awlen), .s_axi_awsize(m_axi_awsize),
        .s_axi_awburst(m_axi_awburst), .s_axi_awvalid(m_axi_awvalid), .s_axi_awready(m_axi_awready),
        .s_axi_wdata(m_axi_wdata), .s_axi_wstrb(m_axi_wstrb), .s_axi_wlast(m_axi_wlast), .s_axi_wvalid(m_axi_wvalid),
        .s_axi_wready(m_axi_wready),
        .s_axi_bid(m_axi_bid), .s_axi_bresp(m_axi_bresp), .s_axi_bvalid(m_axi_bvalid), .s_axi_bready(m_axi_bready),
        .s_axi_arid(m_axi_arid), .s_axi_araddr(read_place), .s_axi_arlen(m_axi_arlen), .s_axi_arsize(m_axi_arsize),
        .s_axi_arburst(m_axi_arburst), .s_axi_arvalid(m_axi_arvalid), .s_axi_arready(m_axi_arready),
        .s_axi_rid(m_axi_rid), .s_axi_rdata(m_axi_rdata), .s_axi_rresp(m_axi_rresp), .s_axi_rlast(m_axi_rlast),
        .s_axi_rvalid(m_axi_rvalid), .s_axi_rready(m_axi_rready),
        .bd_address(32'd0), .bd_last(32'd0), .bd_wdata({BUS_WIDTH{1'b0}}), .bd_write(1'b0), .bd_read(1'b0), .bd_dump(1'b0),
        .bd_rdata(), .bd_reset(1'b0), .errors(errors), .cycle(cycle)
    );

    // --- The terminal: a start bit, eight bits from the lowest on, a stop bit. ---

    reg [7:0] letter, wait_cycles;
    reg [3:0] left;                             // bits to come, the stop bit with them

    always @(posedge clk)
        if (!rst_n) left <= 0;
        else if (left == 0) begin
            if (!line) begin
                left <= 9;
                wait_cycles <= BIT + BIT / 2 - 1;
            end
        end else if (wait_cycles != 0) wait_cycles <= wait_cycles - 1;
        else begin
            wait_cycles <= BIT - 1;
            left <= left - 1;
            if (left != 1) letter <= {line, letter[7:1]};
            else if (!line) $display("\nbench: a letter without a stop bit");
            else begin
                $write("%c", letter);
                if (letter == 8'h0A) $fflush;
            end
        end

    // --- The end. ---

    reg [63:0] limit, end_cycle;
    initial if (!$value$plusargs("limit=%d", limit)) limit = 64'd1_000_000_000;

    always @(posedge clk)
        if (!rst_n) end_cycle <= 0;
        else if (errors != 0) begin
            $display("bench: a violation of the AXI protocol");
            $finish;
        end else if (cycle == limit) begin
            $display("bench: no end within %0d cycles", limit);
            $finish;
        end else if (ended && end_cycle == 0) end_cycle <= cycle;
        else if (ended && cycle == end_cycle + 30 * {56'd0, BIT}) begin  // what is on the line has arrived
            $display("bench: status %0d after %0d cycles", status, end_cycle);
            $finish;
        end
endmodule
