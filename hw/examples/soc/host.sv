// Executes a script of register and memory accesses over AXI4-Lite, in place of a processor. Each step has a limit of cycles. The
// script stops at the first failure.
//
// The plusarg script=FILE names a file for $readmemh, with one step a line: operation (4 bits), address (32), data (32).
//   0  end           the script passed
//   1  write         data to address
//   2  check         that address reads as data
//   3  check_ones    that address reads with all bits of data set
//   4  wait          until irq is high

module host #(
    parameter integer STEPS = 1,            // of the file
    parameter [31:0] FIRST = 0,             // step to begin with: a file may have the scripts of several hosts
    parameter [31:0] LIMIT = 100_000        // cycles for a step
) (
    input  wire        clk,
    input  wire        rst_n,               // synchronous
    input  wire        irq,
    output reg         passed,
    output reg         failed,
    output reg  [31:0] step,                // position in the script
    output reg  [3:0]  operation,
    output reg  [31:0] address,
    output reg  [31:0] data,
    output reg  [31:0] found,               // data of the last read

    output wire [31:0] m_axil_awaddr,
    output reg         m_axil_awvalid,
    input  wire        m_axil_awready,
    output wire [31:0] m_axil_wdata,
    output wire [3:0]  m_axil_wstrb,
    output reg         m_axil_wvalid,
    input  wire        m_axil_wready,
    input  wire [1:0]  m_axil_bresp,
    input  wire        m_axil_bvalid,
    output wire        m_axil_bready,
    output wire [31:0] m_axil_araddr,
    output reg         m_axil_arvalid,
    input  wire        m_axil_arready,
    input  wire [31:0] m_axil_rdata,
    input  wire [1:0]  m_axil_rresp,
    input  wire        m_axil_rvalid,
    output wire        m_axil_rready
);
    localparam [3:0] WRITE = 1, CHECK = 2, CHECK_ONES = 3, WAIT = 4;
    localparam [1:0] FETCH = 0, BEGIN = 1, ACT = 2, STOP = 3;

    reg [67:0] script [0:STEPS-1];
    string file;
    initial begin
        if (!$value$plusargs("script=%s", file)) file = "host.hex";
        $readmemh(file, script);
    end

    reg [1:0] state;
    reg [31:0] cycles;

    assign m_axil_awaddr = address;
    assign m_axil_wdata = data;
    assign m_axil_wstrb = 4'hF;
    assign m_axil_araddr = address;
    assign m_axil_bready = 1;
    assign m_axil_rready = 1;

    always @(posedge clk)
        if (!rst_n) begin
            state <= FETCH; step <= FIRST; passed <= 0; failed <= 0;
            m_axil_awvalid <= 0; m_axil_wvalid <= 0; m_axil_arvalid <= 0;
        end else begin
            cycles <= cycles + 1;
            if (m_axil_awready) m_axil_awvalid <= 0;
            if (m_axil_wready) m_axil_wvalid <= 0;
            if (m_axil_arready) m_axil_arvalid <= 0;
            case (state)
                FETCH: begin
                    {operation, address, data} <= script[step];
                    cycles <= 0;
                    state <= BEGIN;
                end
                BEGIN: begin
                    m_axil_awvalid <= operation == WRITE;
                    m_axil_wvalid <= operation == WRITE;
                    m_axil_arvalid <= operation == CHECK || operation == CHECK_ONES;
                    passed <= operation == 0;
                    state <= operation == 0 ? STOP : ACT;
                end
                ACT: begin
                    if (m_axil_rvalid) found <= m_axil_rdata;
                    if (operation == WRITE && m_axil_bvalid && m_axil_bresp == 0
                        || operation == CHECK && m_axil_rvalid && m_axil_rresp == 0 && m_axil_rdata == data
                        || operation == CHECK_ONES && m_axil_rvalid && m_axil_rresp == 0 && (m_axil_rdata & data) == data
                        || operation == WAIT && irq) begin
                        step <= step + 1;
                        state <= FETCH;
                    end else if (m_axil_bvalid || m_axil_rvalid || cycles == LIMIT) begin
                        failed <= 1;
                        state <= STOP;
                    end
                end
                default: ;
            endcase
        end
endmodule
