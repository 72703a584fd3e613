"""A Yosys technology map that gives operands equal widths, so that the Verilog has no implicit extensions.

In Amaranth and Yosys, the operands of an operator may have different widths. Verilog extends them implicitly, and linters warn.
The map extends and truncates operands explicitly, so that each remaining warning is a real fault.
"""

__all__ = ["WIDTHS_MAP"]

_TWO_OPERANDS = """
(* techmap_celltype = "{cell}" *)
module widths_{name}(A, B, Y);
  parameter A_SIGNED = 0, B_SIGNED = 0, A_WIDTH = 1, B_WIDTH = 1, Y_WIDTH = 1;
  localparam WIDTH = {width};
  input [A_WIDTH-1:0] A;
  input [B_WIDTH-1:0] B;
  output [Y_WIDTH-1:0] Y;
  wire _TECHMAP_FAIL_ = (A_WIDTH == WIDTH && B_WIDTH == {b_width}) || A_WIDTH == 0 || B_WIDTH == 0;
  wire [WIDTH-1:0] a, y;
  wire [{b_width}-1:0] b;
  \\$pos #(.A_SIGNED(A_SIGNED), .A_WIDTH(A_WIDTH), .Y_WIDTH(WIDTH)) extend_a (.A(A), .Y(a));
  {extend_b}
  \\{cell} #(.A_SIGNED(A_SIGNED), .B_SIGNED(B_SIGNED), .A_WIDTH(WIDTH), .B_WIDTH({b_width}), .Y_WIDTH({y_width}))
    _TECHMAP_REPLACE_ (.A(a), .B(b), .Y({y}));
  {cut}
endmodule
"""

_EXTEND_B = "\\$pos #(.A_SIGNED(B_SIGNED), .A_WIDTH(B_WIDTH), .Y_WIDTH(WIDTH)) extend_b (.A(B), .Y(b));"

_LOGIC_NOT = """
(* techmap_celltype = "$logic_not" *)
module widths_logic_not(A, Y);
  parameter A_SIGNED = 0, A_WIDTH = 1, Y_WIDTH = 1;
  input [A_WIDTH-1:0] A;
  output [Y_WIDTH-1:0] Y;
  wire _TECHMAP_FAIL_ = A_WIDTH == 1 || Y_WIDTH != 1;
  \\$eq #(.A_SIGNED(0), .B_SIGNED(0), .A_WIDTH(A_WIDTH), .B_WIDTH(A_WIDTH), .Y_WIDTH(1))
    _TECHMAP_REPLACE_ (.A(A), .B({A_WIDTH{1'b0}}), .Y(Y));
endmodule
"""


def _map():
    larger = "(A_WIDTH > B_WIDTH ? A_WIDTH : B_WIDTH)"
    for cell in ("$eq", "$ne", "$lt", "$le", "$gt", "$ge"):
        yield _TWO_OPERANDS.format(
            cell=cell, name=cell[1:], width=larger, b_width="WIDTH", extend_b=_EXTEND_B, y_width="Y_WIDTH", y="Y", cut=""
        )
    for cell in ("$add", "$sub", "$mul", "$and", "$or", "$xor"):
        yield _TWO_OPERANDS.format(
            cell=cell, name=cell[1:], width="Y_WIDTH", b_width="WIDTH", extend_b=_EXTEND_B, y_width="WIDTH", y="Y", cut=""
        )
    # A right shift needs all bits of A, whatever the width of its result.
    for cell, width in (
        ("$shl", "Y_WIDTH"),
        *((cell, "(A_WIDTH > Y_WIDTH ? A_WIDTH : Y_WIDTH)") for cell in ("$shr", "$shift", "$shiftx")),
    ):
        yield _TWO_OPERANDS.format(
            cell=cell,
            name=cell[1:],
            width=width,
            b_width="B_WIDTH",
            extend_b="assign b = B;",
            y_width="WIDTH",
            y="y",
            cut="assign Y = y[Y_WIDTH-1:0];",
        ).replace("(A_WIDTH == WIDTH &&", "(A_WIDTH == WIDTH && Y_WIDTH == WIDTH &&")
    yield _LOGIC_NOT


#: Text of the map, for `techmap -map`.
WIDTHS_MAP = "".join(_map())
