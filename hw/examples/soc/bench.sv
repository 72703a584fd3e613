// The SoC with its memory and its host. Ends with $fatal if a step of the host's script, or a rule of the bus, is broken.

module bench #(
    parameter integer BUS_WIDTH = 64,
    parameter integer STEPS = 1
);
    localparam integer MEMORY_WIDTH = 20;       // address bits of the memory, at 0x4000_0000

    reg clk, rst_n;
    initial begin
        clk = 0;
        forever #5 clk = !clk;
    end
    initial begin
        rst_n = 0;
        #95 rst_n = 1;
    end

    wire        irq, passed, failed;
    wire [31:0] step, address, data, found, errors;
    wire [3:0]  operation;
    wire [63:0] cycle;

    wire [31:0] h_awaddr, h_wdata, h_araddr, h_rdata;
    wire [3:0]  h_wstrb;
    wire [1:0]  h_bresp, h_rresp;
    wire        h_awvalid, h_awready, h_wvalid, h_wready, h_bvalid, h_bready, h_arvalid, h_arready, h_rvalid, h_rready;

    host #(.STEPS(STEPS)) host (
        .clk(clk), .rst_n(rst_n), .irq(irq), .passed(passed), .failed(failed),
        .step(step), .operation(operation), .address(address), .data(data), .found(found),
        .m_axil_awaddr(h_awaddr), .m_axil_awvalid(h_awvalid), .m_axil_awready(h_awready),
        .m_axil_wdata(h_wdata), .m_axil_wstrb(h_wstrb), .m_axil_wvalid(h_wvalid), .m_axil_wready(h_wready),
        .m_axil_bresp(h_bresp), .m_axil_bvalid(h_bvalid), .m_axil_bready(h_bready),
        .m_axil_araddr(h_araddr), .m_axil_arvalid(h_arvalid), .m_axil_arready(h_arready),
        .m_axil_rdata(h_rdata), .m_axil_rresp(h_rresp), .m_axil_rvalid(h_rvalid), .m_axil_rready(h_rready)
    );

    wire                   awvalid, awready, wlast, wvalid, wready, bvalid, bready;
    wire                   arvalid, arready, rlast, rvalid, rready;
    wire [1:0]             awid, bid, arid, rid;
    wire [31:0]            awaddr, araddr;
    wire [7:0]             awlen, arlen;
    wire [2:0]             awsize, arsize;
    wire [1:0]             awburst, bresp, arburst, rresp;
    wire [BUS_WIDTH-1:0]   wdata, rdata;
    wire [BUS_WIDTH/8-1:0] wstrb;

    soc #(.BUS_WIDTH(BUS_WIDTH)) soc (
        .clk(clk), .rst_n(rst_n), .irq(irq),
        .s_axil_awaddr(h_awaddr), .s_axil_awvalid(h_awvalid), .s_axil_awready(h_awready),
        .s_axil_wdata(h_wdata), .s_axil_wstrb(h_wstrb), .s_axil_wvalid(h_wvalid), .s_axil_wready(h_wready),
        .s_axil_bresp(h_bresp), .s_axil_bvalid(h_bvalid), .s_axil_bready(h_bready),
        .s_axil_araddr(h_araddr), .s_axil_arvalid(h_arvalid), .s_axil_arready(h_arready),
        .s_axil_rdata(h_rdata), .s_axil_rresp(h_rresp), .s_axil_rvalid(h_rvalid), .s_axil_rready(h_rready),
        .m_axi_awid(awid), .m_axi_awaddr(awaddr), .m_axi_awlen(awlen), .m_axi_awsize(awsize), .m_axi_awburst(awburst),
        .m_axi_awvalid(awvalid), .m_axi_awready(awready),
        .m_axi_wdata(wdata), .m_axi_wstrb(wstrb), .m_axi_wlast(wlast), .m_axi_wvalid(wvalid), .m_axi_wready(wready),
        .m_axi_bid(bid), .m_axi_bresp(bresp), .m_axi_bvalid(bvalid), .m_axi_bready(bready),
        .m_axi_arid(arid), .m_axi_araddr(araddr), .m_axi_arlen(arlen), .m_axi_arsize(arsize), .m_axi_arburst(arburst),
        .m_axi_arvalid(arvalid), .m_axi_arready(arready),
        .m_axi_rid(rid), .m_axi_rdata(rdata), .m_axi_rresp(rresp), .m_axi_rlast(rlast), .m_axi_rvalid(rvalid),
        .m_axi_rready(rready)
    );

    axi_memory #(
        .DATA_WIDTH(BUS_WIDTH), .ADDRESS_WIDTH(MEMORY_WIDTH + 1), .ID_WIDTH(2), .BYTES(1 << MEMORY_WIDTH)
    ) memory (
        .aclk(clk), .aresetn(rst_n),
        // The memory starts at address 0. The bit above its last address bit is 1 for all addresses outside it.
        .s_axi_awid(awid), .s_axi_awaddr({awaddr[31:MEMORY_WIDTH] != 12'h400, awaddr[MEMORY_WIDTH-1:0]}),
        .s_axi_awlen(awlen), .s_axi_awsize(awsize), .s_axi_awburst(awburst), .s_axi_awvalid(awvalid), .s_axi_awready(awready),
        .s_axi_wdata(wdata), .s_axi_wstrb(wstrb), .s_axi_wlast(wlast), .s_axi_wvalid(wvalid), .s_axi_wready(wready),
        .s_axi_bid(bid), .s_axi_bresp(bresp), .s_axi_bvalid(bvalid), .s_axi_bready(bready),
        .s_axi_arid(arid), .s_axi_araddr({araddr[31:MEMORY_WIDTH] != 12'h400, araddr[MEMORY_WIDTH-1:0]}),
        .s_axi_arlen(arlen), .s_axi_arsize(arsize), .s_axi_arburst(arburst), .s_axi_arvalid(arvalid), .s_axi_arready(arready),
        .s_axi_rid(rid), .s_axi_rdata(rdata), .s_axi_rresp(rresp), .s_axi_rlast(rlast), .s_axi_rvalid(rvalid),
        .s_axi_rready(rready),
        .bd_address(32'd0), .bd_last(32'd0), .bd_wdata({BUS_WIDTH{1'b0}}), .bd_write(1'b0), .bd_read(1'b0), .bd_dump(1'b0),
        .bd_rdata(), .bd_reset(1'b0), .errors(errors), .cycle(cycle)
    );

    integer tenths;                             // of the script that were reported, and one
    always @(posedge clk)
        if (!rst_n) tenths <= 1;
        else if (step >= tenths * STEPS / 10) begin
            $display("%0d %% of the script, cycle %0d", 10 * tenths, cycle);
            $fflush;
            tenths <= tenths + 1;
        end

    always @(posedge clk) begin
        if (failed)
            $fatal(1, "step %0d of the script: operation %0d, address %08x, data %08x; last read %08x", step + 1, operation,
                   address, data, found);
        if (errors != 0) $fatal(1, "a violation of the AXI protocol");
        if (passed) begin
            $display("passed: %0d steps, %0d cycles", step, cycle);
            $finish;
        end
    end
endmodule
