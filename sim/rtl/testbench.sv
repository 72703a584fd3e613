// The core and its host memory. What a bench touches is at the ports; the AXI4 bus between the two stays inside.

module testbench #(
    parameter integer BUS_WIDTH = 256,
    parameter integer ADDRESS_WIDTH = 32,
    parameter integer MEMORY_BYTES = 1 << 25
) (
    input  wire                  clk,
    input  wire                  rst_n,

    input  wire [8:0]            s_axil_awaddr,
    input  wire                  s_axil_awvalid,
    output wire                  s_axil_awready,
    input  wire [31:0]           s_axil_wdata,
    input  wire [3:0]            s_axil_wstrb,
    input  wire                  s_axil_wvalid,
    output wire                  s_axil_wready,
    output wire [1:0]            s_axil_bresp,
    output wire                  s_axil_bvalid,
    input  wire                  s_axil_bready,
    input  wire [8:0]            s_axil_araddr,
    input  wire                  s_axil_arvalid,
    output wire                  s_axil_arready,
    output wire [31:0]           s_axil_rdata,
    output wire [1:0]            s_axil_rresp,
    output wire                  s_axil_rvalid,
    input  wire                  s_axil_rready,
    output wire                  irq,

    // Back door into the memory, in words of one bus beat (see axi_memory)
    input  wire [31:0]           bd_address,
    input  wire [31:0]           bd_last,
    input  wire [BUS_WIDTH-1:0]  bd_wdata,
    input  wire                  bd_write,
    input  wire                  bd_read,
    input  wire                  bd_dump,
    output wire [BUS_WIDTH-1:0]  bd_rdata,
    input  wire                  bd_reset,      // resets the core alone

    output wire [31:0]           errors,
    output wire [63:0]           cycle
);
    wire                     awid, awlock, awvalid, awready;
    wire [ADDRESS_WIDTH-1:0] awaddr;
    wire [7:0]               awlen;
    wire [2:0]               awsize, awprot;
    wire [1:0]               awburst;
    wire [3:0]               awcache, awqos;
    wire [BUS_WIDTH-1:0]     wdata;
    wire [BUS_WIDTH/8-1:0]   wstrb;
    wire                     wlast, wvalid, wready;
    wire                     bid, bvalid, bready;
    wire [1:0]               bresp;
    wire                     arid, arlock, arvalid, arready;
    wire [ADDRESS_WIDTH-1:0] araddr;
    wire [7:0]               arlen;
    wire [2:0]               arsize, arprot;
    wire [1:0]               arburst;
    wire [3:0]               arcache, arqos;
    wire                     rid, rlast, rvalid, rready;
    wire [BUS_WIDTH-1:0]     rdata;
    wire [1:0]               rresp;

    tpu core (
        .aclk(clk), .aresetn(rst_n && bd_reset !== 1'b1), .irq(irq),
        .s_axil_awaddr(s_axil_awaddr), .s_axil_awvalid(s_axil_awvalid), .s_axil_awready(s_axil_awready),
        .s_axil_wdata(s_axil_wdata), .s_axil_wstrb(s_axil_wstrb), .s_axil_wvalid(s_axil_wvalid),
        .s_axil_wready(s_axil_wready),
        .s_axil_bresp(s_axil_bresp), .s_axil_bvalid(s_axil_bvalid), .s_axil_bready(s_axil_bready),
        .s_axil_araddr(s_axil_araddr), .s_axil_arvalid(s_axil_arvalid), .s_axil_arready(s_axil_arready),
        .s_axil_rdata(s_axil_rdata), .s_axil_rresp(s_axil_rresp), .s_axil_rvalid(s_axil_rvalid),
        .s_axil_rready(s_axil_rready),
        .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
        .m_axi_awlock(awlock), .m_axi_awcache(awcache), .m_axi_awprot(awprot), .m_axi_awqos(awqos),
        .m_axi_awvalid(awvalid), .m_axi_awready(awready),
        .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(wready),
        .m_axi_bid(bid), .m_axi_bresp(bresp), .m_axi_bvalid(bvalid), .m_axi_bready(bready),
        .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
        .m_axi_arlock(arlock), .m_axi_arcache(arcache), .m_axi_arprot(arprot), .m_axi_arqos(arqos),
        .m_axi_arvalid(arvalid), .m_axi_arready(arready),
        .m_axi_rid(rid), .m_axi_rdata(rdata), .m_axi_rresp(rresp), .m_axi_rlast(rlast), .m_axi_rvalid(rvalid),
        .m_axi_rready(rready)
    );

    axi_memory #(
        .DATA_WIDTH(BUS_WIDTH), .ADDRESS_WIDTH(ADDRESS_WIDTH), .ID_WIDTH(1), .BYTES(MEMORY_BYTES)
    ) memory (
        .aclk(clk), .aresetn(rst_n),
        .s_axi_awid(awid), .s_axi_awaddr(awaddr), .s_axi_awlen(awlen), .s_axi_awsize(awsize), .s_axi_awburst(awburst),
        .s_axi_awvalid(awvalid), .s_axi_awready(awready),
        .s_axi_wdata(wdata), .s_axi_wstrb(wstrb), .s_axi_wlast(wlast), .s_axi_wvalid(wvalid), .s_axi_wready(wready),
        .s_axi_bid(bid), .s_axi_bresp(bresp), .s_axi_bvalid(bvalid), .s_axi_bready(bready),
        .s_axi_arid(arid), .s_axi_araddr(araddr), .s_axi_arlen(arlen), .s_axi_arsize(arsize), .s_axi_arburst(arburst),
        .s_axi_arvalid(arvalid), .s_axi_arready(arready),
        .s_axi_rid(rid), .s_axi_rdata(rdata), .s_axi_rresp(rresp), .s_axi_rlast(rlast), .s_axi_rvalid(rvalid),
        .s_axi_rready(rready),
        .bd_address(bd_address), .bd_last(bd_last), .bd_wdata(bd_wdata), .bd_write(bd_write), .bd_read(bd_read),
        .bd_dump(bd_dump), .bd_rdata(bd_rdata), .bd_reset(bd_reset), .errors(errors), .cycle(cycle)
    );
endmodule
