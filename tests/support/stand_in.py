"""A minimal core with the ports and main registers of `tpu` that copies region INPUT to OUTPUT. The tests of runner, driver and
memory use it to be independent of the TPU."""

from string import Template

from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, VERSION

_TEXT = Template("""
module tpu (
    input  wire aclk, input wire aresetn, output wire irq,
    input  wire [8:0] s_axil_awaddr, input wire s_axil_awvalid, output wire s_axil_awready,
    input  wire [31:0] s_axil_wdata, input wire [3:0] s_axil_wstrb, input wire s_axil_wvalid, output wire s_axil_wready,
    output wire [1:0] s_axil_bresp, output reg s_axil_bvalid, input wire s_axil_bready,
    input  wire [8:0] s_axil_araddr, input wire s_axil_arvalid, output wire s_axil_arready,
    output reg [31:0] s_axil_rdata, output wire [1:0] s_axil_rresp, output reg s_axil_rvalid, input wire s_axil_rready,
    output wire m_axi_awid, output reg [${address}-1:0] m_axi_awaddr, output wire [7:0] m_axi_awlen,
    output wire [2:0] m_axi_awsize, output wire [1:0] m_axi_awburst, output wire m_axi_awlock,
    output wire [3:0] m_axi_awcache, output wire [2:0] m_axi_awprot, output wire [3:0] m_axi_awqos,
    output reg m_axi_awvalid, input wire m_axi_awready,
    output wire [${bus}-1:0] m_axi_wdata, output wire [${bus}/8-1:0] m_axi_wstrb, output wire m_axi_wlast,
    output reg m_axi_wvalid, input wire m_axi_wready,
    input wire m_axi_bid, input wire [1:0] m_axi_bresp, input wire m_axi_bvalid, output wire m_axi_bready,
    output wire m_axi_arid, output reg [${address}-1:0] m_axi_araddr, output wire [7:0] m_axi_arlen,
    output wire [2:0] m_axi_arsize, output wire [1:0] m_axi_arburst, output wire m_axi_arlock,
    output wire [3:0] m_axi_arcache, output wire [2:0] m_axi_arprot, output wire [3:0] m_axi_arqos,
    output reg m_axi_arvalid, input wire m_axi_arready,
    input wire m_axi_rid, input wire [${bus}-1:0] m_axi_rdata, input wire [1:0] m_axi_rresp, input wire m_axi_rlast,
    input wire m_axi_rvalid, output wire m_axi_rready
);
    localparam BEAT = ${bus} / 8, LENGTH = 16;
    assign m_axi_awid = 0, m_axi_awlen = LENGTH - 1, m_axi_awsize = 3'($$clog2(BEAT)), m_axi_awburst = 1, m_axi_awlock = 0,
           m_axi_awcache = 3, m_axi_awprot = 0, m_axi_awqos = 0, m_axi_arid = 0, m_axi_arlen = LENGTH - 1,
           m_axi_arsize = 3'($$clog2(BEAT)), m_axi_arburst = 1, m_axi_arlock = 0, m_axi_arcache = 3, m_axi_arprot = 0,
           m_axi_arqos = 0, m_axi_bready = 1, m_axi_rready = 1;
    reg [31:0] registers [0:127];
    reg [${bus}-1:0] buffer [0:LENGTH-1];
    reg [4:0] got, sent;
    reg [31:0] left;
    reg running, done, fault, pending, enable;
    integer k;
    initial for (k = 0; k < 128; k = k + 1) registers[k] = 0;
    assign irq = pending & enable;
    assign s_axil_bresp = 0, s_axil_rresp = 0;
    assign s_axil_awready = s_axil_wvalid && s_axil_awvalid && !s_axil_bvalid, s_axil_wready = s_axil_awready;
    assign s_axil_arready = !s_axil_rvalid;
    assign m_axi_wdata = buffer[sent[3:0]], m_axi_wstrb = {BEAT{1'b1}}, m_axi_wlast = sent == LENGTH - 1;
    ${body}
    always @(posedge aclk) begin
        if (s_axil_bready) s_axil_bvalid <= 0;
        if (s_axil_rready) s_axil_rvalid <= 0;
        if (running) registers[${cycles}] <= registers[${cycles}] + 1;
        if (running && !(m_axi_rvalid && m_axi_rready)) registers[${stall}] <= registers[${stall}] + 1;
        if (s_axil_arvalid && s_axil_arready) begin
            s_axil_rvalid <= 1;
            case (s_axil_araddr[8:2])
                ${id}: s_axil_rdata <= ${identifier};
                ${version}: s_axil_rdata <= ${version_value};
                ${status}: s_axil_rdata <= {28'd0, 1'b1, fault, done, running};
                default: s_axil_rdata <= registers[s_axil_araddr[8:2]];
            endcase
        end
        if (running && m_axi_arvalid && m_axi_arready) m_axi_arvalid <= 0;
        if (m_axi_awvalid && m_axi_awready) m_axi_awvalid <= 0;
        if (m_axi_rvalid) begin
            buffer[got[3:0]] <= m_axi_rdata;
            got <= got + 1;
            registers[${busy}] <= registers[${busy}] + 1;
            if (m_axi_rresp != 0) begin fault <= 1; registers[${cause}] <= 4; end
            if (m_axi_rlast) begin
                m_axi_awvalid <= 1; m_axi_wvalid <= 1; sent <= 0; got <= 0;
            end
        end
        if (m_axi_wvalid && m_axi_wready) begin
            sent <= sent + 1;
            if (m_axi_wlast) m_axi_wvalid <= 0;
        end
        if (m_axi_bvalid) begin
            left <= left - BEAT * LENGTH;
            m_axi_araddr <= m_axi_araddr + BEAT * LENGTH;
            m_axi_awaddr <= m_axi_awaddr + BEAT * LENGTH;
            if (m_axi_bresp != 0) begin fault <= 1; registers[${cause}] <= 5; end
            if (left == BEAT * LENGTH || fault || m_axi_bresp != 0) begin
                running <= 0; done <= !(fault || m_axi_bresp != 0); pending <= 1;
            end else m_axi_arvalid <= 1;
        end
        if (s_axil_awvalid && s_axil_awready) begin
            s_axil_bvalid <= 1;
            registers[s_axil_awaddr[8:2]] <= s_axil_wdata;
            if (s_axil_awaddr[8:2] == ${interrupt}) begin
                enable <= s_axil_wdata[0];
                if (s_axil_wdata[1]) pending <= 0;
            end
            if (s_axil_awaddr[8:2] == ${control} && s_axil_wdata[1]) begin
                running <= 0; done <= 0; fault <= 0; got <= 0; m_axi_arvalid <= 0;
            end else if (s_axil_awaddr[8:2] == ${control} && s_axil_wdata[0] && !running) begin
                running <= 1; done <= 0; m_axi_arvalid <= 1; left <= registers[${input_size}];
                m_axi_araddr <= registers[${input_base}]; m_axi_awaddr <= registers[${output_base}];
                registers[${cycles}] <= 0; registers[${busy}] <= 0; registers[${stall}] <= 0;
            end
        end
        if (!aresetn) begin
            running <= 0; done <= 0; fault <= 0; pending <= 0; enable <= 0; got <= 0; sent <= 0; left <= 0;
            s_axil_bvalid <= 0; s_axil_rvalid <= 0; m_axi_arvalid <= 0; m_axi_awvalid <= 0; m_axi_wvalid <= 0;
        end
    end
endmodule
""")


def stand_in(config, body=""):
    """Returns the Verilog of this core; `body` is inserted into its module."""

    names = "cycles busy id version status control input_size interrupt".split()
    names = dict.fromkeys(names) | {"stall": "stall_load", "cause": "fault_cause"}
    names |= {"input_base": "input_base_low", "output_base": "output_base_low"}
    words = {name: REGISTER[register or name].offset // 4 for name, register in names.items()}
    values = {"identifier": f"32'h{IDENTIFIER:08x}", "version_value": f"32'h{VERSION:08x}"}
    return _TEXT.substitute(words | values, address=config.address_width, bus=config.bus_width, body=body)
