// A small SoC around the core: a host's AXI4-Lite port comes in, an AXI4 port goes out to a memory controller.
//
//   s_axil (host) --+-- CORE_BASE, 512 bytes --> registers of the core
//                        |
//                        '-- the rest --.
//                                       +--> m_axi (memory controller)
//   the core's AXI4 manager ------------'
//
// The interconnect
//   * accepts one read and one write of the host at a time; an access to memory becomes a burst of one full-width beat;
//   * routes responses by the upper bit of their ID: 0 for the core, 1 for the host. The lower bit is the core's own ID;
//   * gives the host priority between two bursts of the core. AXI4 write data are in the order of their addresses. So the
//     host's write waits for the last beat of the core's open bursts, and stalls the next burst.

module soc #(
    parameter integer BUS_WIDTH = 64,               // of the core and of the memory, in bits
    parameter [31:0]  CORE_BASE = 32'h3000_0000     // a multiple of 512
) (
    input  wire                    clk,
    input  wire                    rst_n,           // synchronous
    output wire                    irq,             // level

    input  wire [31:0]             s_axil_awaddr,
    input  wire                    s_axil_awvalid,
    output wire                    s_axil_awready,
    input  wire [31:0]             s_axil_wdata,
    input  wire [3:0]              s_axil_wstrb,
    input  wire                    s_axil_wvalid,
    output wire                    s_axil_wready,
    output wire [1:0]              s_axil_bresp,
    output wire                    s_axil_bvalid,
    input  wire                    s_axil_bready,
    input  wire [31:0]             s_axil_araddr,
    input  wire                    s_axil_arvalid,
    output wire                    s_axil_arready,
    output wire [31:0]             s_axil_rdata,
    output wire [1:0]              s_axil_rresp,
    output wire                    s_axil_rvalid,
    input  wire                    s_axil_rready,

    output wire [1:0]              m_axi_awid,
    output wire [31:0]             m_axi_awaddr,
    output wire [7:0]              m_axi_awlen,
    output wire [2:0]              m_axi_awsize,
    output wire [1:0]              m_axi_awburst,
    output wire                    m_axi_awvalid,
    input  wire                    m_axi_awready,
    output wire [BUS_WIDTH-1:0]    m_axi_wdata,
    output wire [BUS_WIDTH/8-1:0]  m_axi_wstrb,
    output wire                    m_axi_wlast,
    output wire                    m_axi_wvalid,
    input  wire                    m_axi_wready,
    input  wire [1:0]              m_axi_bid,
    input  wire [1:0]              m_axi_bresp,
    input  wire                    m_axi_bvalid,
    output wire                    m_axi_bready,
    output wire [1:0]              m_axi_arid,
    output wire [31:0]             m_axi_araddr,
    output wire [7:0]              m_axi_arlen,
    output wire [2:0]              m_axi_arsize,
    output wire [1:0]              m_axi_arburst,
    output wire                    m_axi_arvalid,
    input  wire                    m_axi_arready,
    input  wire [1:0]              m_axi_rid,
    input  wire [BUS_WIDTH-1:0]    m_axi_rdata,
    input  wire [1:0]              m_axi_rresp,
    input  wire                    m_axi_rlast,
    input  wire                    m_axi_rvalid,
    output wire                    m_axi_rready
);
    localparam integer BEAT = BUS_WIDTH / 8;
    localparam [31:0] LANE = BEAT - 4;              // address bits that choose a word within a beat
    localparam [31:0] BEAT_MASK = ~(BEAT - 1);
    localparam CORE = 1'b0, HOST = 1'b1;

    // --- The core. Outputs that this SoC does not use are open: lock, cache, prot, qos. ---

    wire                   awready_core, wready_core, bvalid_core, arready_core, rvalid_core;   // its registers
    wire [1:0]             bresp_core, rresp_core;
    wire [31:0]            rdata_core;
    wire                   to_core_awvalid, to_core_wvalid, to_core_bready, to_core_arvalid, to_core_rready;
    reg  [31:0]            write_address, write_data, read_address;
    reg  [3:0]             write_strobe;

    wire [31:0]            awaddr, araddr;                                                      // its manager
    wire [7:0]             awlen, arlen;
    wire [2:0]             awsize, arsize;
    wire [1:0]             awburst, arburst;
    wire                   awid, arid, awvalid, awready, wvalid, wready, wlast, bvalid, bready, arvalid, arready, rvalid, rready;
    wire [BUS_WIDTH-1:0]   wdata;
    wire [BEAT-1:0]        wstrb;

    tpu core (
        .aclk(clk), .aresetn(rst_n), .irq(irq),

        .s_axil_awaddr(write_address[8:0]), .s_axil_awvalid(to_core_awvalid), .s_axil_awready(awready_core),
        .s_axil_wdata(write_data), .s_axil_wstrb(write_strobe), .s_axil_wvalid(to_core_wvalid), .s_axil_wready(wready_core),
        .s_axil_bresp(bresp_core), .s_axil_bvalid(bvalid_core), .s_axil_bready(to_core_bready),
        .s_axil_araddr(read_address[8:0]), .s_axil_arvalid(to_core_arvalid), .s_axil_arready(arready_core),
        .s_axil_rdata(rdata_core), .s_axil_rresp(rresp_core), .s_axil_rvalid(rvalid_core), .s_axil_rready(to_core_rready),

        .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
        .m_axi_awlock(), .m_axi_awcache(), .m_axi_awprot(), .m_axi_awqos(), .m_axi_awvalid(awvalid), .m_axi_awready(awready),
        .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(wready),
        .m_axi_bid(m_axi_bid[0]), .m_axi_bresp(m_axi_bresp), .m_axi_bvalid(bvalid), .m_axi_bready(bready),
        .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
        .m_axi_arlock(), .m_axi_arcache(), .m_axi_arprot(), .m_axi_arqos(), .m_axi_arvalid(arvalid), .m_axi_arready(arready),
        .m_axi_rid(m_axi_rid[0]), .m_axi_rdata(m_axi_rdata), .m_axi_rresp(m_axi_rresp), .m_axi_rlast(m_axi_rlast),
        .m_axi_rvalid(rvalid), .m_axi_rready(rready)
    );

    // --- The host's write: address and data are held until the response is accepted. ---

    reg address_taken, data_taken, address_sent, data_sent;
    wire write_taken = address_taken && data_taken;
    wire write_registers = write_address[31:9] == CORE_BASE[31:9];
    wire host_writes = write_taken && !write_registers && !(address_sent && data_sent);     // wants the memory port ...
    reg  host_granted;                                                                      // ... and has it
    wire host_answered = m_axi_bvalid && m_axi_bid[1] == HOST;

    assign s_axil_awready = !address_taken;
    assign s_axil_wready = !data_taken;
    assign to_core_awvalid = write_taken && write_registers && !address_sent;
    assign to_core_wvalid = write_taken && write_registers && !data_sent;
    assign to_core_bready = write_taken && write_registers && s_axil_bready;
    assign s_axil_bvalid = write_taken && (write_registers ? bvalid_core : host_answered);
    assign s_axil_bresp = write_registers ? bresp_core : m_axi_bresp;

    always @(posedge clk)
        if (!rst_n || (s_axil_bvalid && s_axil_bready)) begin
            address_taken <= 0; data_taken <= 0; address_sent <= 0; data_sent <= 0;
        end else begin
            if (s_axil_awvalid && s_axil_awready) begin
                address_taken <= 1;
                write_address <= s_axil_awaddr;
            end
            if (s_axil_wvalid && s_axil_wready) begin
                data_taken <= 1;
                write_data <= s_axil_wdata;
                write_strobe <= s_axil_wstrb;
            end
            if (write_registers ? to_core_awvalid && awready_core : host_granted && m_axi_awready) address_sent <= 1;
            if (write_registers ? to_core_wvalid && wready_core : host_granted && m_axi_wready) data_sent <= 1;
        end

    // --- The memory's write port. ---

    reg [4:0] open;         // bursts of the core that lack data, at most 16
    reg       core_waits;   // its address is valid, and must stay until it is accepted
    wire      core_may = !host_granted && (core_waits || !host_writes);

    assign m_axi_awvalid = host_granted ? !address_sent : awvalid && core_may;
    assign m_axi_awid = host_granted ? {HOST, 1'b0} : {CORE, awid};
    assign m_axi_awaddr = host_granted ? write_address & BEAT_MASK : awaddr;
    assign m_axi_awlen = host_granted ? 8'd0 : awlen;
    assign m_axi_awsize = awsize;
    assign m_axi_awburst = awburst;
    assign awready = m_axi_awready && core_may;

    assign m_axi_wvalid = host_granted ? !data_sent : wvalid && open != 0;
    assign m_axi_wdata = host_granted ? {BEAT / 4{write_data}} : wdata;
    assign m_axi_wstrb = host_granted ? {{BEAT - 4{1'b0}}, write_strobe} << (write_address & LANE) : wstrb;
    assign m_axi_wlast = host_granted || wlast;
    assign wready = m_axi_wready && !host_granted && open != 0;

    assign bvalid = m_axi_bvalid && m_axi_bid[1] == CORE;
    assign m_axi_bready = m_axi_bid[1] == HOST ? s_axil_bready : bready;

    always @(posedge clk)
        if (!rst_n) begin
            open <= 0; core_waits <= 0; host_granted <= 0;
        end else begin
            open <= open + {4'd0, awvalid && awready} - {4'd0, wvalid && wready && wlast};
            core_waits <= awvalid && core_may && !m_axi_awready;
            if (host_granted) host_granted <= !((address_sent || m_axi_awready) && (data_sent || m_axi_wready));
            else host_granted <= host_writes && !core_waits && open == 0;
        end

    // --- The host's read, and the memory's read port. ---

    reg  read_taken, read_sent;
    wire read_registers = read_address[31:9] == CORE_BASE[31:9];
    wire host_reads = read_taken && !read_registers && !read_sent;
    reg  read_waits, read_owner;        // an address is valid, and must stay until it is accepted
    wire read_by_host = read_waits ? read_owner : host_reads;

    assign s_axil_arready = !read_taken;
    assign to_core_arvalid = read_taken && read_registers && !read_sent;
    assign to_core_rready = read_taken && read_registers && s_axil_rready;
    assign s_axil_rvalid = read_taken && (read_registers ? rvalid_core : m_axi_rvalid && m_axi_rid[1] == HOST);
    assign s_axil_rresp = read_registers ? rresp_core : m_axi_rresp;
    assign s_axil_rdata = read_registers ? rdata_core : m_axi_rdata[8 * (read_address & LANE) +: 32];

    assign m_axi_arvalid = read_by_host || arvalid;
    assign m_axi_arid = read_by_host ? {HOST, 1'b0} : {CORE, arid};
    assign m_axi_araddr = read_by_host ? read_address & BEAT_MASK : araddr;
    assign m_axi_arlen = read_by_host ? 8'd0 : arlen;
    assign m_axi_arsize = arsize;
    assign m_axi_arburst = arburst;
    assign arready = m_axi_arready && !read_by_host;

    assign rvalid = m_axi_rvalid && m_axi_rid[1] == CORE;
    assign m_axi_rready = m_axi_rid[1] == HOST ? s_axil_rready : rready;

    always @(posedge clk)
        if (!rst_n) begin
            read_taken <= 0; read_sent <= 0; read_waits <= 0;
        end else begin
            if (s_axil_arvalid && s_axil_arready) begin
                read_taken <= 1;
                read_address <= s_axil_araddr;
            end
            if (to_core_arvalid && arready_core || read_by_host && m_axi_arready) read_sent <= 1;
            if (s_axil_rvalid && s_axil_rready) begin
                read_taken <= 0;
                read_sent <= 0;
            end
            read_waits <= m_axi_arvalid && !m_axi_arready;
            read_owner <= read_by_host;
        end
endmodule
