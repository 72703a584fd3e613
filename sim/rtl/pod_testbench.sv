// Cores in a ring, each with a host memory. `select` is the core whose registers the AXI4-Lite port accesses; `irq` is high when
// the interrupts of all cores are high. The back door dumps all memories.

module pod_testbench #(
    parameter integer CORES = 2,
    parameter integer BUS_WIDTH = 128,
    parameter integer LINK_WIDTH = 128,
    parameter integer ADDRESS_WIDTH = 32,
    parameter integer ID_WIDTH = 1,
    parameter integer MEMORY_BYTES = 1 << 25
) (
    input  wire                  clk,
    input  wire                  rst_n,

    input  wire [31:0]           select,
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

    // Back door into the memories, in words of one bus beat (see axi_memory)
    input  wire [31:0]           bd_address,
    input  wire [31:0]           bd_last,
    input  wire [BUS_WIDTH-1:0]  bd_wdata,
    input  wire                  bd_write,
    input  wire                  bd_read,
    input  wire                  bd_dump,

    output wire [31:0]           errors,
    output wire [63:0]           cycle
);
    // Signals of each core
    wire [CORES-1:0]      awready, wready, bvalid, arready, rvalid, irqs;
    wire [1:0]            bresp [0:CORES-1], rresp [0:CORES-1];
    wire [31:0]           rdata [0:CORES-1];
    wire [31:0]           errors_until [0:CORES];
    wire [63:0]           cycles [0:CORES-1];
    wire [LINK_WIDTH-1:0] tdata [0:CORES-1];
    wire [7:0]            tuser [0:CORES-1];
    wire [CORES-1:0]      tvalid, tready, tlast;  // link from a core to the next

    assign s_axil_awready = awready[select];
    assign s_axil_wready = wready[select];
    assign s_axil_bvalid = bvalid[select];
    assign s_axil_bresp = bresp[select];
    assign s_axil_arready = arready[select];
    assign s_axil_rvalid = rvalid[select];
    assign s_axil_rresp = rresp[select];
    assign s_axil_rdata = rdata[select];
    assign irq = &irqs;
    assign errors_until[0] = 0;
    assign errors = errors_until[CORES];
    assign cycle = cycles[0];

    genvar i;
    generate for (i = 0; i < CORES; i = i + 1) begin : cores
        localparam integer BEFORE = (i + CORES - 1) % CORES;

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
        wire [31:0]              own_errors;
        wire [BUS_WIDTH-1:0]     bd_rdata;

        assign errors_until[i + 1] = errors_until[i] + own_errors;

        tpu core (
            .aclk(clk), .aresetn(rst_n),
            .s_axil_awvalid(s_axil_awvalid && select == i), .s_axil_awready(awready[i]),
            .s_axil_wvalid(s_axil_wvalid && select == i), .s_axil_wready(wready[i]),
            .s_axil_bresp(bresp[i]), .s_axil_bvalid(bvalid[i]), .s_axil_bready(s_axil_bready && select == i),
            .s_axil_arvalid(s_axil_arvalid && select == i), .s_axil_arready(arready[i]),
            .s_axil_rdata(rdata[i]), .s_axil_rresp(rresp[i]), .s_axil_rvalid(rvalid[i]),
            .s_axil_rready(s_axil_rready && select == i),
            .irq(irqs[i]),
            .m_axis_ring_tdata(tdata[i]), .m_axis_ring_tvalid(tvalid[i]), .m_axis_ring_tready(tready[i]),
            .m_axis_ring_tlast(tlast[i]), .m_axis_ring_tuser(tuser[i]),
            .s_axis_ring_tdata(tdata[BEFORE]), .s_axis_ring_tvalid(tvalid[BEFORE]), .s_axis_ring_tready(tready[BEFORE]),
            .s_axis_ring_tlast(tlast[BEFORE]), .s_axis_ring_tuser(tuser[BEFORE]),
            .*
        );

        axi_memory #(
            .DATA_WIDTH(BUS_WIDTH), .ADDRESS_WIDTH(ADDRESS_WIDTH), .ID_WIDTH(ID_WIDTH), .BYTES(MEMORY_BYTES), .NUMBER(i)
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
            .bd_reset(1'b0), .errors(own_errors), .cycle(cycles[i]),
            .*      // the back door
        );
    end endgenerate
endmodule
