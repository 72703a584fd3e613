"""Verilog that gives a core four pins: its ports have more bits than a package has."""

import re

__all__ = ["on_scan_chain"]

_HEAD = re.compile(r"^module tpu \(\n(.*?)\n\);", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"^  (input|output) +(?:wire|reg) +(?:\[(\d+):0\] )?(\w+)", re.MULTILINE)


def on_scan_chain(verilog):
    """Module `top`, to be read with the Verilog of a core: the core between two shift registers.

    Every input but the clock comes from a bit of the register `drive`, every output goes to a bit of the register
    `observed`, which is loaded while `load` is 1 and shifted out at `scan_o` otherwise. So nothing is optimised away, and
    every path begins and ends in a register, as it would between the core and a registered bus.
    """
    ports = _PORT.findall(_HEAD.search(verilog)[1])
    connections = [".aclk(clk)"]
    widths = {"input": 0, "output": 0}
    for direction, high, name in ports:
        if name != "aclk":
            low = widths[direction]
            widths[direction] += int(high or 0) + 1
            connections.append(f".{name}({'drive' if direction == 'input' else 'seen'}[{widths[direction] - 1}:{low}])")
    driven, seen = widths["input"], widths["output"]
    return f"""
module top (
  input  wire clk,
  input  wire scan_i,
  input  wire load,
  output wire scan_o
);
  reg  [{driven - 1}:0] drive;
  reg  [{seen - 1}:0] observed;
  wire [{seen - 1}:0] seen;
  always @(posedge clk) begin
    drive <= {{drive[{driven - 2}:0], scan_i}};
    observed <= load ? seen : {{observed[{seen - 2}:0], drive[{driven - 1}]}};
  end
  assign scan_o = observed[{seen - 1}];
  tpu core ({', '.join(connections)});
endmodule
"""
