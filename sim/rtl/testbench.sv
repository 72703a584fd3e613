// The core and its host memory. Benches access the ports; the AXI4 bus between core and memory is internal. The link of a core
// with a ring is looped back: as rank 0 or 1 of two cores, the core is its own neighbour.

module testbench #(
    parameter integer BUS_WIDTH = 256,
    parameter integer ADDRESS_WIDTH = 32,
    parameter integer ID_WIDTH = 1,
    parameter integer LINK_WIDTH = 64,
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
    wire [ID_WIDTH-1:0]      m_axi_awid;
    wire                     m_axi_awlock, m_axi_awvalid, m_axi_awready;
    wire [ADDRESS_WIDTH-1:0] m_axi_awaddr;
    wire [7:0]               m_axi_awlen;
    wire [2:0]               m_axi_awsize, m_axi_awprot;
    wire [1:0]               m_axi_awburst;
    wire [3:0]               m_axi_awcache, m_axi_awqos;
    wire [BUS_WIDTH-1:0]     m_axi_wdata;
    wire [BUS_WIDTH/8-1:0]   m_axi_wstrb;
    wire                     m_axi_wlast, m_axi_wvalid, m_axi_wready;
    wire [ID_WIDTH-1:0]      m_axi_bid;
    wire                     m_axi_bvalid, m_axi_bready;
    wire [1:0]               m_axi_bresp;
    wire [ID_WIDTH-1:0]      m_axi_arid;
    wire                     m_axi_arlock, m_axi_arvalid, m_axi_arready;
    wire [ADDRESS_WIDTH-1:0] m_axi_araddr;
    wire [7:0]               m_axi_arlen;
    wire [2:0]               m_axi_arsize, m_axi_arprot;
    wire [1:0]               m_axi_arburst;
    wire [3:0]               m_axi_arcache, m_axi_arqos;
    wire [ID_WIDTH-1:0]      m_axi_rid;
    wire                     m_axi_rlast, m_axi_rvalid, m_axi_rready;
    wire [BUS_WIDTH-1:0]     m_axi_rdata;
    wire [1:0]               m_axi_rresp;

    // The neighbour processes the other one of two segments, whose number is in `tuser` if the core has that signal.
    wire [LINK_WIDTH-1:0]    m_axis_ring_tdata, s_axis_ring_tdata;
    wire [7:0]               m_axis_ring_tuser, s_axis_ring_tuser;
    wire                     m_axis_ring_tvalid, m_axis_ring_tready, m_axis_ring_tlast;
    wire                     s_axis_ring_tvalid, s_axis_ring_tready, s_axis_ring_tlast;

    assign s_axis_ring_tdata = m_axis_ring_tdata;
    assign s_axis_ring_tuser = m_axis_ring_tuser ^ 8'd1;
    assign s_axis_ring_tvalid = m_axis_ring_tvalid;
    assign s_axis_ring_tlast = m_axis_ring_tlast;
    assign m_axis_ring_tready = s_axis_ring_tready;

    tpu core (.aclk(clk), .aresetn(rst_n && bd_reset !== 1'b1), .*);

    axi_memory #(
        .DATA_WIDTH(BUS_WIDTH), .ADDRESS_WIDTH(ADDRESS_WIDTH), .ID_WIDTH(ID_WIDTH), .BYTES(MEMORY_BYTES)
    ) memory (
        .aclk(clk), .aresetn(rst_n),
        .s_axi_awid(m_axi_awid), .s_axi_awaddr(m_axi_awaddr), .s_axi_awlen(m_axi_awlen), .s_axi_awsize(m_axi_awsize),
        .s_axi_awburst(m_axi_awburst), .s_axi_awvalid(m_axi_awvalid), .s_axi_awready(m_axi_awready),
        .s_axi_wdata(m_axi_wdata), .s_axi_wstrb(m_axi_wstrb), .s_axi_wlast(m_axi_wlast), .s_axi_wvalid(m_axi_wvalid),
        .s_axi_wready(m_axi_wready),
        .s_axi_bid(m_axi_bid), .s_axi_bresp(m_axi_bresp), .s_axi_bvalid(m_axi_bvalid), .s_axi_bready(m_axi_bready),
        .s_axi_arid(m_axi_arid), .s_axi_araddr(m_axi_araddr), .s_axi_arlen(m_axi_arlen), .s_axi_arsize(m_axi_arsize),
        .s_axi_arburst(m_axi_arburst), .s_axi_arvalid(m_axi_arvalid), .s_axi_arready(m_axi_arready),
        .s_axi_rid(m_axi_rid), .s_axi_rdata(m_axi_rdata), .s_axi_rresp(m_axi_rresp), .s_axi_rlast(m_axi_rlast),
        .s_axi_rvalid(m_axi_rvalid), .s_axi_rready(m_axi_rready),
        .*      // the back door, errors, cycle
    );

`ifndef VERILATOR  // has no unknown bits
    // Valid, ready and `irq` are known after the reset, and payloads while they are valid. The memory checks write data.
    wire unknown_state = ^{
        s_axil_awready, s_axil_wready, s_axil_bvalid, s_axil_arready, s_axil_rvalid, irq,
        m_axi_awvalid, m_axi_wvalid, m_axi_bready, m_axi_arvalid, m_axi_rready
    } === 1'bx || (m_axis_ring_tvalid ^ s_axis_ring_tready) === 1'bx && m_axis_ring_tvalid !== 1'bz;
    wire unknown_payload =
        s_axil_bvalid && ^s_axil_bresp === 1'bx || s_axil_rvalid && ^{s_axil_rresp, s_axil_rdata} === 1'bx
        || m_axi_awvalid && ^{
            m_axi_awid, m_axi_awaddr, m_axi_awlen, m_axi_awsize, m_axi_awburst, m_axi_awlock, m_axi_awcache, m_axi_awprot, m_axi_awqos
        } === 1'bx
        || m_axi_arvalid && ^{
            m_axi_arid, m_axi_araddr, m_axi_arlen, m_axi_arsize, m_axi_arburst, m_axi_arlock, m_axi_arcache, m_axi_arprot, m_axi_arqos
        } === 1'bx
        || m_axis_ring_tvalid === 1'b1 && ^{m_axis_ring_tlast, m_axis_ring_tdata} === 1'bx
        || m_axi_wvalid && ^{m_axi_wlast, m_axi_wstrb} === 1'bx;
    always @(posedge clk) if (rst_n === 1'b1 && (unknown_state || unknown_payload))
        memory.violation("an output of the core is unknown");
`endif
`ifdef TPU_TEXTS
    texts texts (.clk);
`endif
`ifdef TPU_PROBES
    probes probes (.clk, .cycle);
`endif
endmodule
