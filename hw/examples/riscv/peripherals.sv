// The peripherals of the CPU: a serial line, counters of cycles and of bytes, and the end of the simulation.
//
//   0x00  write: a byte for the line      0x04  read: 1 if there is room for a byte
//   0x08  read: cycles                    0x0C  read: bytes that the CPU has read from RAM    0x10  read: bytes written
//   0x14  write: 1 detaches the core's registers, 0 attaches them
//   0x18  write: ends the simulation with this status

module peripherals (
    input  wire        clk,
    input  wire        rst_n,           // synchronous
    input  wire [4:0]  address,
    input  wire        write,
    input  wire [31:0] data,
    output reg  [31:0] q,               // a cycle after the address
    input  wire        line_read,       // the CPU has read 32 bytes of RAM
    input  wire        word_written,    // the CPU has written 4 bytes of RAM
    output reg         detached,
    output wire        line,            // serial
    output reg         ended,
    output reg  [31:0] status
);
    reg  [7:0]  letter;
    reg         full;
    wire        taken;
    reg  [31:0] cycles, bytes_read, bytes_written;

    uart_transmitter uart (
        .clk(clk), .rst(!rst_n), .i__payload(letter), .i__valid(full), .i__ready(taken), .line(line)
    );

    always @(posedge clk)
        if (!rst_n) begin
            full <= 0; detached <= 0; ended <= 0; status <= 0; cycles <= 0; bytes_read <= 0; bytes_written <= 0;
        end else begin
            cycles <= cycles + 1;
            if (line_read) bytes_read <= bytes_read + 32;
            if (word_written) bytes_written <= bytes_written + 4;
            if (taken) full <= 0;
            if (write)
                case (address[4:2])
                    0: begin
                        letter <= data[7:0];
                        full <= 1;
                    end
                    5: detached <= data[0];
                    6: begin
                        ended <= 1;
                        status <= data;
                    end
                    default: ;
                endcase
            case (address[4:2])
                1: q <= {31'd0, !full};
                2: q <= cycles;
                3: q <= bytes_read;
                4: q <= bytes_written;
                default: q <= 0;
            endcase
        end
endmodule
