// The bus of a CPU with two Wishbone ports, for instructions and for data. It makes one access at a time; data has priority.
//
//   0x1000_0000  local memory    an access to `local`, a word a cycle
//   0x4000_0000  RAM             reads: lines of 32 bytes by AXI4 bursts, for its caches; writes: single words by AXI4-Lite
//   0x8000_0000  the core        registers by AXI4-Lite
//   0x9000_0000  peripherals     an access to `local`
//
// After LIMIT cycles without a response of the AXI4-Lite port, or after an error response, a read returns 0xFFFFFFFF. A port that
// owes a response is `lost`: it gets no access until the reset. The CPU does not wait for the end of a write, but its next access
// to RAM or to the core does.

module cpu_bus #(
    parameter integer BUS_WIDTH = 64,               // of the RAM, up to 256
    parameter [9:0]   LIMIT = 1000
) (
    input  wire                 clk,
    input  wire                 rst_n,              // synchronous

    input  wire                 i_stb,              // Wishbone: instructions
    input  wire [29:0]          i_adr,
    input  wire [2:0]           i_cti,
    output wire                 i_ack,
    input  wire                 d_stb,              // data
    input  wire                 d_we,
    input  wire [29:0]          d_adr,
    input  wire [3:0]           d_sel,
    input  wire [31:0]          d_data,
    input  wire [2:0]           d_cti,
    output wire                 d_ack,
    output wire [31:0]          q,                  // read data of both ports

    output wire [31:0]          local_address,      // local memory and peripherals; `local_q` is one cycle later
    output wire                 local_write,
    input  wire [31:0]          local_q,
    input  wire                 detached,           // accesses to the core's registers lead nowhere
    output wire                 line_read,          // pulses: of 32 bytes, and of 4
    output wire                 word_written,

    output wire [31:0]          m_axi_araddr,       // lines
    output wire [7:0]           m_axi_arlen,
    output reg                  m_axi_arvalid,
    input  wire                 m_axi_arready,
    input  wire [BUS_WIDTH-1:0] m_axi_rdata,
    input  wire [1:0]           m_axi_rresp,
    input  wire                 m_axi_rvalid,

    output reg  [31:0]          m_axil_awaddr,      // words
    output reg                  m_axil_awvalid,
    input  wire                 m_axil_awready,
    output reg  [31:0]          m_axil_wdata,
    output reg  [3:0]           m_axil_wstrb,
    output reg                  m_axil_wvalid,
    input  wire                 m_axil_wready,
    input  wire                 m_axil_bvalid,
    output reg  [31:0]          m_axil_araddr,
    output reg                  m_axil_arvalid,
    input  wire                 m_axil_arready,
    input  wire [31:0]          m_axil_rdata,
    input  wire [1:0]           m_axil_rresp,
    input  wire                 m_axil_rvalid
);
    localparam [3:0] SRAM = 4'h1, RAM = 4'h4, CORE = 4'h8, PERIPHERALS = 4'h9;
    localparam [2:0] IDLE = 0, LOCAL = 1, LINE = 2, WAIT = 3, DONE = 4;
    localparam [31:0] NOTHING = 32'hFFFF_FFFF;
    localparam integer WORDS = BUS_WIDTH / 32;      // of a beat

    reg [2:0] state;
    reg       data_turn;

    // --- The port that is served, and its access. ---

    wire        for_data = state == IDLE ? d_stb : data_turn;
    wire        stb = for_data ? d_stb : i_stb;
    wire        we = for_data && d_we;
    wire [29:0] adr = for_data ? d_adr : i_adr;
    wire        last = (for_data ? d_cti : i_cti) != 3'b010;
    wire [3:0]  place = adr[29:26];
    wire        near = place == SRAM || place == PERIPHERALS;

    reg         out, lost;          // an AXI4-Lite access is outstanding; its response never arrived
    reg  [9:0]  timer;
    reg  [31:0] word;
    reg  [255:0] line;
    reg  [3:0]  filled;             // words of the line that are there

    wire ack = stb && (state == LOCAL || state == DONE || state == LINE && {1'b0, adr[2:0]} < filled);
    assign d_ack = ack && for_data;
    assign i_ack = ack && !for_data;
    assign q = state == LOCAL ? local_q : state == LINE ? line[32 * adr[2:0] +: 32] : word;

    assign local_address = {adr + {29'd0, state == LOCAL && !last}, 2'b00};
    assign local_write = state == IDLE && stb && we && near;
    assign line_read = m_axi_arvalid && m_axi_arready;
    assign word_written = state == IDLE && stb && we && !out && place == RAM;

    assign m_axi_araddr = {adr[29:3], 5'b0};
    assign m_axi_arlen = 8'd8 / WORDS[7:0] - 8'd1;

    wire reachable = !lost && (place == RAM || place == CORE && !detached);

    always @(posedge clk)
        if (!rst_n) begin
            state <= IDLE; out <= 0; lost <= 0; timer <= 0;
            m_axi_arvalid <= 0; m_axil_awvalid <= 0; m_axil_wvalid <= 0; m_axil_arvalid <= 0;
        end else begin
            if (m_axi_arready) m_axi_arvalid <= 0;
            if (m_axil_awready) m_axil_awvalid <= 0;
            if (m_axil_wready) m_axil_wvalid <= 0;
            if (m_axil_arready) m_axil_arvalid <= 0;

            timer <= out || state == WAIT ? timer + 1 : 0;
            if (m_axil_bvalid || m_axil_rvalid) out <= 0;
            else if (out && timer == LIMIT) begin
                out <= 0;
                lost <= 1;
            end

            case (state)
                IDLE: begin
                    data_turn <= d_stb;
                    filled <= 0;
                    if (stb && near) state <= LOCAL;
                    else if (stb && !out) begin
                        if (place == RAM && !we) begin
                            m_axi_arvalid <= 1;
                            state <= LINE;
                        end else if (!reachable) state <= place == RAM ? DONE : WAIT;
                        else begin
                            out <= 1;
                            m_axil_araddr <= {adr, 2'b00};
                            m_axil_arvalid <= !we;
                            m_axil_awaddr <= {adr, 2'b00};
                            m_axil_awvalid <= we;
                            m_axil_wdata <= d_data;
                            m_axil_wstrb <= d_sel;
                            m_axil_wvalid <= we;
                            state <= we ? DONE : WAIT;
                        end
                    end
                end
                LOCAL: if (last) state <= IDLE;
                LINE: begin
                    if (m_axi_rvalid) begin
                        line[32 * filled[2:0] +: BUS_WIDTH] <= m_axi_rresp == 0 ? m_axi_rdata : {WORDS{NOTHING}};
                        filled <= filled + WORDS[3:0];
                    end
                    if (ack && last) state <= IDLE;
                end
                WAIT:
                    if (m_axil_rvalid && out || timer == LIMIT) begin
                        word <= m_axil_rvalid && out && m_axil_rresp == 0 ? m_axil_rdata : NOTHING;
                        state <= DONE;
                    end
                default: state <= IDLE;
            endcase
        end
endmodule
