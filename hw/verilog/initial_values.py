"""Values that registers have before the reset, in one `initial` block a module.

Yosys writes them into the declarations, where Verilator takes them for a mistake beside an `always` that assigns the same.
"""

import re

__all__ = ["with_initial_blocks"]

_REGISTER = re.compile(
    r"^(  (?:output )?reg +(?:signed +)?(?:\[[^]]*\] )?)(?P<name>\\\S+ |\w+) = (?P<value>\d+'[^,;\n]*)(?P<end>[,;]?)$",
    re.MULTILINE,
)


def with_initial_blocks(verilog):
    """The same Verilog, with the values of its registers at the end of each module."""
    pieces = []
    for module in re.split(r"(?<=^endmodule\n)", verilog, flags=re.MULTILINE):
        values = [f"    {match['name']} = {match['value']};\n" for match in _REGISTER.finditer(module)]
        text = _REGISTER.sub(r"\1\g<name>\g<end>", module)
        if values:
            text = text.removesuffix("endmodule\n") + f"  initial begin\n{''.join(values)}  end\nendmodule\n"
        pieces.append(text)
    return "".join(pieces)
