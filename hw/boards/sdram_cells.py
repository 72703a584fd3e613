"""The pins of an SDRAM chip on an ECP5: registers in the pins, and the chip's clock."""

__all__ = ["CONNECTIONS", "SDRAM_RESOURCE", "sdram_cells", "sdram_resources"]

#: The resource in the package amaranth-boards, and the bits of its signals; 1 for those that are not numbered.
SDRAM_RESOURCE = "sdram#0"
_SIGNALS = {"clk": 1, "clk_en": 1, "cs": 1, "ras": 1, "cas": 1, "we": 1, "ba": 2, "a": 13, "dqm": 2, "dq": 16}
#: Registers of one bit each: name, type of the cell, input, output, number of bits.
_REGISTERS = (
    ("address", "OFS1P3DX", "a", "sdram_a", 13),
    ("bank", "OFS1P3DX", "ba", "sdram_ba", 2),
    ("mask", "OFS1P3DX", "dqm", "sdram_dqm", 2),
    ("out", "OFS1P3DX", "dq_o", "dq_pin", 16),
    ("in", "IFS1P3DX", "sdram_dq", "dq_i", 16),
)
_COMMAND = ("ras", "cas", "we")  # in the order of `hw.boards.sdram_commands.Command`

_TEXT = """
  // The SDRAM chip. Its clock is three quarters of a cycle late: its inputs are then stable around its edge, and what it reads
  // arrives around the edge of `clk` after the next (at 80 to 110 MHz).
  genvar index;
  wire [2:0] command;
  wire [1:0] ba, dqm;
  wire [12:0] a;
  wire [15:0] dq_o, dq_i, dq_pin;
  wire dq_oe;
  reg drive = 0;
  always @(posedge clk) drive <= dq_oe;
  ODDRX1F sdram_clock (.SCLK(clk_late), .RST(1'b0), .D0(1'b1), .D1(1'b0), .Q(sdram_clk));
{command}
{registers}
  assign sdram_dq = drive ? dq_pin : 16'bz;
"""

#: The connections of `serial_system` to the nets of the text above.
CONNECTIONS = ", ".join(f".sdram__{member}({member})" for member in ("command", "ba", "a", "dqm", "dq_o", "dq_oe", "dq_i"))


def sdram_resources():
    """Returns {port of `top`: name of the resource} for each pin."""
    return {
        f"sdram_{signal}{bit}": f"{SDRAM_RESOURCE}.{signal}{bit}"
        for signal, count in _SIGNALS.items()
        for bit in ([""] if count == 1 else [f"[{index}]" for index in range(count)])
    }


def sdram_cells(pins):
    """Returns the Verilog text between `serial_system` and the pins. `pins` is {port: Pin}."""

    def active(signal):
        return "1'b0" if pins[f"sdram_{signal}"].inverted else "1'b1"

    lines = [f"  assign sdram_{signal} = {active(signal)};" for signal in ("clk_en", "cs")]
    for index, signal in enumerate(_COMMAND):
        # Inactive before the first clock edge.
        inverted = pins[f"sdram_{signal}"].inverted
        cell, clear, value = ("OFS1P3BX", "PD", "~") if inverted else ("OFS1P3DX", "CD", "")
        lines.append(
            f"  {cell} {signal} (.SCLK(clk), .SP(1'b1), .{clear}(1'b0), .D({value}command[{index}]), .Q(sdram_{signal}));"
        )
    registers = [
        f"  generate for (index = 0; index < {count}; index = index + 1) begin : pins_{name}\n"
        f"    {cell} pin (.SCLK(clk), .SP(1'b1), .CD(1'b0), .D({given}[index]), .Q({found}[index]));\n  end endgenerate"
        for name, cell, given, found, count in _REGISTERS
    ]
    return _TEXT.format(command="\n".join(lines), registers="\n".join(registers))
