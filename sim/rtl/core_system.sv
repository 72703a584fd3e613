// The system around one core: a memory, a host that carries out a script (host.sv), and the comparison of the results.
//
// Plusargs: see axi_memory and host; expected=FILE names the results for $readmemh. A line of it has a byte address in the
// memory, a mask of bits to compare, and a word.

module core_system #(
    parameter integer BUS_WIDTH = 64,
    parameter integer ADDRESS_WIDTH = 32,
    parameter integer ID_WIDTH = 1,
    parameter integer MEMORY_BYTES = 1 << 20,
    parameter integer STEPS = 1,                // of the script
    parameter [31:0] FIRST = 0,                 // step to begin with
    parameter integer RESULTS = 1,              // words to compare
    parameter [31:0] LIMIT = 100_000            // cycles for a step
) (
    input  wire                     aclk,
    input  wire                     aresetn,
    input  wire                     irq,
    output wire                     passed,     // the script ended, and all results are right
    output wire                     failed,

    output wire [8:0]               s_axil_awaddr,
    output wire                     s_axil_awvalid,
    input  wire                     s_axil_awready,
    output wire [31:0]              s_axil_wdata,
    output wire [3:0]               s_axil_wstrb,
    output wire                     s_axil_wvalid,
    input  wire                     s_axil_wready,
    input  wire [1:0]               s_axil_bresp,
    input  wire                     s_axil_bvalid,
    output wire                     s_axil_bready,
    output wire [8:0]               s_axil_araddr,
    output wire                     s_axil_arvalid,
    input  wire                     s_axil_arready,
    input  wire [31:0]              s_axil_rdata,
    input  wire [1:0]               s_axil_rresp,
    input  wire                     s_axil_rvalid,
    output wire                     s_axil_rready,

    input  wire [ID_WIDTH-1:0]      m_axi_awid,
    input  wire [ADDRESS_WIDTH-1:0] m_axi_awaddr,
    input  wire [7:0]               m_axi_awlen,
    input  wire [2:0]               m_axi_awsize,
    input  wire [1:0]               m_axi_awburst,
    input  wire                     m_axi_awvalid,
    output wire                     m_axi_awready,
    input  wire [BUS_WIDTH-1:0]     m_axi_wdata,
    input  wire [BUS_WIDTH/8-1:0]   m_axi_wstrb,
    input  wire                     m_axi_wlast,
    input  wire                     m_axi_wvalid,
    output wire                     m_axi_wready,
    output wire [ID_WIDTH-1:0]      m_axi_bid,
    output wire [1:0]               m_axi_bresp,
    output wire                     m_axi_bvalid,
    input  wire                     m_axi_bready,
    input  wire [ID_WIDTH-1:0]      m_axi_arid,
    input  wire [ADDRESS_WIDTH-1:0] m_axi_araddr,
    input  wire [7:0]               m_axi_arlen,
    input  wire [2:0]               m_axi_arsize,
    input  wire [1:0]               m_axi_arburst,
    input  wire                     m_axi_arvalid,
    output wire                     m_axi_arready,
    output wire [ID_WIDTH-1:0]      m_axi_rid,
    output wire [BUS_WIDTH-1:0]     m_axi_rdata,
    output wire [1:0]               m_axi_rresp,
    output wire                     m_axi_rlast,
    output wire                     m_axi_rvalid,
    input  wire                     m_axi_rready
);
    localparam integer BEAT = BUS_WIDTH / 8;

    wire        script_passed, script_failed;
    wire [31:0] step, address, data, found, errors, awaddr, araddr;
    wire [3:0]  operation;
    wire [63:0] cycle;

    host #(.STEPS(STEPS), .FIRST(FIRST), .LIMIT(LIMIT)) host (
        .clk(aclk), .rst_n(aresetn), .irq(irq), .passed(script_passed), .failed(script_failed),
        .step(step), .operation(operation), .address(address), .data(data), .found(found),
        .m_axil_awaddr(awaddr), .m_axil_awvalid(s_axil_awvalid), .m_axil_awready(s_axil_awready),
        .m_axil_wdata(s_axil_wdata), .m_axil_wstrb(s_axil_wstrb), .m_axil_wvalid(s_axil_wvalid), .m_axil_wready(s_axil_wready),
        .m_axil_bresp(s_axil_bresp), .m_axil_bvalid(s_axil_bvalid), .m_axil_bready(s_axil_bready),
        .m_axil_araddr(araddr), .m_axil_arvalid(s_axil_arvalid), .m_axil_arready(s_axil_arready),
        .m_axil_rdata(s_axil_rdata), .m_axil_rresp(s_axil_rresp), .m_axil_rvalid(s_axil_rvalid), .m_axil_rready(s_axil_rready)
    );
    assign s_axil_awaddr = awaddr[8:0];
    assign s_axil_araddr = araddr[8:0];

    axi_memory #(
        .DATA_WIDTH(BUS_WIDTH), .ADDRESS_WIDTH(ADDRESS_WIDTH), .ID_WIDTH(ID_WIDTH), .BYTES(MEMORY_BYTES)
    ) memory (
        .aclk(aclk), .aresetn(aresetn),
        .s_axi_awid(m_axi_awid), .s_axi_awaddr(m_axi_awaddr), .s_axi_awlen(m_axi_awlen), .s_axi_awsize(m_axi_awsize),
        .s_axi_awburst(m_axi_awburst), .s_axi_awvalid(m_axi_awvalid), .s_axi_awready(m_axi_awready),
        .s_axi_wdata(m_axi_wdata), .s_axi_wstrb(m_axi_wstrb), .s_axi_wlast(m_axi_wlast), .s_axi_wvalid(m_axi_wvalid),
        .s_axi_wready(m_axi_wready),
        .s_axi_bid(m_axi_bid), .s_axi_bresp(m_axi_bresp), .s_axi_bvalid(m_axi_bvalid), .s_axi_bready(m_axi_bready),
        .s_axi_arid(m_axi_arid), .s_axi_araddr(m_axi_araddr), .s_axi_arlen(m_axi_arlen), .s_axi_arsize(m_axi_arsize),
        .s_axi_arburst(m_axi_arburst), .s_axi_arvalid(m_axi_arvalid), .s_axi_arready(m_axi_arready),
        .s_axi_rid(m_axi_rid), .s_axi_rdata(m_axi_rdata), .s_axi_rresp(m_axi_rresp), .s_axi_rlast(m_axi_rlast),
        .s_axi_rvalid(m_axi_rvalid), .s_axi_rready(m_axi_rready),
        .bd_address(32'd0), .bd_last(32'd0), .bd_wdata({BUS_WIDTH{1'b0}}), .bd_write(1'b0), .bd_read(1'b0), .bd_dump(1'b0),
        .bd_rdata(), .bd_reset(1'b0), .errors(errors), .cycle(cycle)
    );

    // --- Results ---

    reg [95:0] expected [0:RESULTS-1];
    string file;
    initial begin
        if (!$value$plusargs("expected=%s", file)) file = "expected.hex";
        $readmemh(file, expected);
    end

    reg compared;
    reg [31:0] wrong, at, mask, word, stored;
    integer index;
    assign passed = compared && wrong == 0;
    assign failed = script_failed || errors != 0 || compared && wrong != 0;

    always @(posedge aclk)
        if (!aresetn) begin
            compared <= 0;
            wrong = 0;
        end else if (script_passed && !compared) begin
            for (index = 0; index < RESULTS; index = index + 1) begin
                {at, mask, word} = expected[index];
                stored = memory.memory[at / BEAT][8 * (at % BEAT) +: 32];
                if ((stored & mask) !== word) begin
                    wrong = wrong + 1;
                    if (wrong < 10) $display("%m: address %0h holds %h, not %h, in the bits %h", at, stored, word, mask);
                end
            end
            compared <= 1;
            $display("%m: %0d of %0d words are right, after %0d cycles", RESULTS - wrong, RESULTS, cycle);
        end else if (script_failed && !compared) begin
            $display("%m: step %0d of the script failed: operation %0d, address %08x, data %08x; last read %08x", step + 1,
                     operation, address, data, found);
            compared <= 1;
        end
endmodule
