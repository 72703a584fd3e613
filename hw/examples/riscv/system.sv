// A RISC-V CPU, local memory, a serial line, and the SoC of `../soc/soc.sv` with the core; an AXI4 port goes out to the RAM.
//
//   VexRiscv == cpu_bus --+-- local memory, peripherals
//                         +-- words ---> soc --+-- the core's registers
//                         |               |    '-- the core's AXI4 manager --.
//                         |               '----------------------------------+--.
//                         '-- lines -----------------------------------------'--+--> m_axi (RAM)
//
// The upper bit of a response's ID is 1 for a line of the CPU; the lower bits are the ID of the SoC.

module system #(
    parameter integer BUS_WIDTH = 64                // of the core and of the RAM, in bits
) (
    input  wire                    clk,
    input  wire                    rst_n,           // synchronous
    output wire                    line,            // serial
    output wire                    ended,
    output wire [31:0]             status,

    output wire [2:0]              m_axi_awid,
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
    input  wire [2:0]              m_axi_bid,
    input  wire [1:0]              m_axi_bresp,
    input  wire                    m_axi_bvalid,
    output wire                    m_axi_bready,
    output wire [2:0]              m_axi_arid,
    output wire [31:0]             m_axi_araddr,
    output wire [7:0]              m_axi_arlen,
    output wire [2:0]              m_axi_arsize,
    output wire [1:0]              m_axi_arburst,
    output wire                    m_axi_arvalid,
    input  wire                    m_axi_arready,
    input  wire [2:0]              m_axi_rid,
    input  wire [BUS_WIDTH-1:0]    m_axi_rdata,
    input  wire [1:0]              m_axi_rresp,
    input  wire                    m_axi_rlast,
    input  wire                    m_axi_rvalid,
    output wire                    m_axi_rready
);
    localparam integer SRAM_WORDS = 4096;           // 16 KiB

    // --- The CPU. ---

    wire        i_stb, i_ack, d_stb, d_we, d_ack, irq;
    wire [29:0] i_adr, d_adr;
    wire [31:0] d_data, q;
    wire [3:0]  d_sel;
    wire [2:0]  i_cti, d_cti;

    VexRiscv cpu (
        .clk(clk), .reset(!rst_n), .externalResetVector(32'h4000_0000),
        .timerInterrupt(1'b0), .softwareInterrupt(1'b0), .externalInterruptArray({31'd0, irq}),
        .iBusWishbone_CYC(), .iBusWishbone_STB(i_stb), .iBusWishbone_ACK(i_ack), .iBusWishbone_WE(), .iBusWishbone_ADR(i_adr),
        .iBusWishbone_DAT_MISO(q), .iBusWishbone_DAT_MOSI(), .iBusWishbone_SEL(), .iBusWishbone_ERR(1'b0),
        .iBusWishbone_CTI(i_cti), .iBusWishbone_BTE(),
        .dBusWishbone_CYC(), .dBusWishbone_STB(d_stb), .dBusWishbone_ACK(d_ack), .dBusWishbone_WE(d_we), .dBusWishbone_ADR(d_adr),
        .dBusWishbone_DAT_MISO(q), .dBusWishbone_DAT_MOSI(d_data), .dBusWishbone_SEL(d_sel), .dBusWishbone_ERR(1'b0),
        .dBusWishbone_CTI(d_cti), .dBusWishbone_BTE()
    );

    // --- The bus of the CPU. ---

    wire [31:0] local_address, araddr_line, h_awaddr, h_wdata, h_araddr, h_rdata;
    wire        local_write, detached, line_read, word_written, arvalid_line, arready_line;
    wire [7:0]  arlen_line;
    wire [3:0]  h_wstrb;
    wire [1:0]  h_rresp;
    wire        h_awvalid, h_awready, h_wvalid, h_wready, h_bvalid, h_arvalid, h_arready, h_rvalid;
    reg  [31:0] sram_q;
    wire [31:0] peripherals_q;
    reg         from_sram;

    cpu_bus #(.BUS_WIDTH(BUS_WIDTH)) cpu_bus (
        .clk(clk), .rst_n(rst_n),
        .i_stb(i_stb), .i_adr(i_adr), .i_cti(i_cti), .i_ack(i_ack),
        .d_stb(d_stb), .d_we(d_we), .d_adr(d_adr), .d_sel(d_sel), .d_data(d_data), .d_cti(d_cti), .d_ack(d_ack), .q(q),
        .local_address(local_address), .local_write(local_write), .local_q(from_sram ? sram_q : peripherals_q),
        .detached(detached), .line_read(line_read), .word_written(word_written),
        .m_axi_araddr(araddr_line), .m_axi_arlen(arlen_line), .m_axi_arvalid(arvalid_line), .m_axi_arready(arready_line),
        .m_axi_rdata(m_axi_rdata), .m_axi_rresp(m_axi_rresp), .m_axi_rvalid(m_axi_rvalid && m_axi_rid[2]),
        .m_axil_awaddr(h_awaddr), .m_axil_awvalid(h_awvalid), .m_axil_awready(h_awready),
        .m_axil_wdata(h_wdata), .m_axil_wstrb(h_wstrb), .m_axil_wvalid(h_wvalid), .m_axil_wready(h_wready),
        .m_axil_bvalid(h_bvalid), .m_axil_araddr(h_araddr), .m_axil_arvalid(h_arvalid), .m_axil_arready(h_arready),
        .m_axil_rdata(h_rdata), .m_axil_rresp(h_rresp), .m_axil_rvalid(h_rvalid)
    );

    // --- Local memory and peripherals. ---

    wire at_sram = local_address[31:28] == 4'h1;
    reg [31:0] sram [0:SRAM_WORDS-1];
    integer lane;

    always @(posedge clk) begin
        for (lane = 0; lane < 4; lane = lane + 1)
            if (local_write && at_sram && d_sel[lane]) sram[local_address[13:2]][8 * lane +: 8] <= d_data[8 * lane +: 8];
        sram_q <= sram[local_address[13:2]];
        from_sram <= at_sram;
    end

    peripherals peripherals (
        .clk(clk), .rst_n(rst_n), .address(local_address[4:0]), .write(local_write && !at_sram), .data(d_data), .q(peripherals_q),
        .line_read(line_read), .word_written(word_written), .detached(detached), .line(line), .ended(ended), .status(status)
    );

    // --- The SoC. ---

    wire [1:0]  arid_soc;
    wire [31:0] araddr_soc;
    wire [7:0]  arlen_soc;
    wire        arvalid_soc, arready_soc, rready_soc;

    assign m_axi_awid[2] = 0;

    // Its ports to the RAM are the ports of the system, except for IDs and the read channels that it shares with the CPU's lines.
    soc #(.BUS_WIDTH(BUS_WIDTH), .CORE_BASE(32'h8000_0000)) soc (
        .s_axil_awaddr(h_awaddr), .s_axil_awvalid(h_awvalid), .s_axil_awready(h_awready),
        .s_axil_wdata(h_wdata), .s_axil_wstrb(h_wstrb), .s_axil_wvalid(h_wvalid), .s_axil_wready(h_wready),
        .s_axil_bresp(), .s_axil_bvalid(h_bvalid), .s_axil_bready(1'b1),
        .s_axil_araddr(h_araddr), .s_axil_arvalid(h_arvalid), .s_axil_arready(h_arready),
        .s_axil_rdata(h_rdata), .s_axil_rresp(h_rresp), .s_axil_rvalid(h_rvalid), .s_axil_rready(1'b1),
        .m_axi_awid(m_axi_awid[1:0]), .m_axi_bid(m_axi_bid[1:0]),
        .m_axi_arid(arid_soc), .m_axi_araddr(araddr_soc), .m_axi_arlen(arlen_soc), .m_axi_arvalid(arvalid_soc),
        .m_axi_arready(arready_soc),
        .m_axi_rid(m_axi_rid[1:0]), .m_axi_rvalid(m_axi_rvalid && !m_axi_rid[2]), .m_axi_rready(rready_soc),
        .*
    );

    // --- The RAM's read port: a line of the CPU has priority between two bursts of the SoC. ---

    reg  waits, for_line_before;        // an address is valid, and must stay until it is accepted
    wire for_line = waits ? for_line_before : arvalid_line;

    assign m_axi_arvalid = for_line ? arvalid_line : arvalid_soc;
    assign m_axi_arid = for_line ? 3'b100 : {1'b0, arid_soc};
    assign m_axi_araddr = for_line ? araddr_line : araddr_soc;
    assign m_axi_arlen = for_line ? arlen_line : arlen_soc;
    assign arready_line = m_axi_arready && for_line;
    assign arready_soc = m_axi_arready && !for_line;
    assign m_axi_rready = m_axi_rid[2] || rready_soc;

    always @(posedge clk)
        if (!rst_n) waits <= 0;
        else begin
            waits <= m_axi_arvalid && !m_axi_arready;
            for_line_before <= for_line;
        end
endmodule
