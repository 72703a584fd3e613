"""A Verilog wrapper with four pins for a core or one of its modules, whose ports have more bits than a package has pins."""

import re

__all__ = ["on_scan_chain"]

_PORT = re.compile(r"^  (input|output) +(?:wire|reg) +(?:\[(\d+):0\] )?(\w+)", re.MULTILINE)


def on_scan_chain(verilog, module="tpu", clock="aclk"):
    """Returns the Verilog of a module `top` with the core, or another `module`, between two shift registers.

    The text must be read together with the Verilog of the core. Each bit of an input, except the clock, comes from a bit of the
    register `drive`; bit 0 of the first port is shifted in last. Each bit of an output is stored in a bit of the register `seen`.
    `chain` loads `seen` while `load` is 1, and else shifts it out at `scan_o`, the highest bit of the last port first. So no
    logic is optimised away, and every path begins and ends in a register, as between the core and a registered bus.
    """
    head = re.search(rf"^module {module} \(\n(.*?)\n\);", verilog, re.MULTILINE | re.DOTALL)
    ports = _PORT.findall(head[1])
    connections = [f".{clock}(clk)"]
    widths = {"input": 0, "output": 0}
    for direction, high, name in ports:
        if name != clock:
            low = widths[direction]
            widths[direction] += int(high or 0) + 1
            connections.append(f".{name}({'drive' if direction == 'input' else 'outputs'}[{widths[direction] - 1}:{low}])")
    driven, seen = widths["input"], widths["output"]
    return f"""
module top (
  input  wire clk,
  input  wire scan_i,
  input  wire load,
  output wire scan_o
);
  reg  [{driven - 1}:0] drive;
  reg  [{seen - 1}:0] seen, chain;
  wire [{seen - 1}:0] outputs;
  always @(posedge clk) begin
    drive <= {{drive[{driven - 2}:0], scan_i}};
    seen <= outputs;
    chain <= load ? seen : {{chain[{seen - 2}:0], drive[{driven - 1}]}};
  end
  assign scan_o = chain[{seen - 1}];
  {module} core ({", ".join(connections)});
endmodule
"""
