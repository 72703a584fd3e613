"""Initial values of registers. They are written in one `initial` block for each module.

Yosys writes initial values into the declarations. Verilator reports this as an error if an `always` block assigns the same
register.
"""

import re

__all__ = ["with_initial_blocks"]

_REGISTER = re.compile(
    r"^(  (?:output )?reg +(?:signed +)?(?:\[[^]]*\] )?)(?P<name>\\\S+ |\w+) = (?P<value>\d+'[^,;\n]*)(?P<end>[,;]?)$",
    re.MULTILINE,
)


def with_initial_blocks(verilog):
    """Returns the Verilog text with the initial values of registers moved into an `initial` block at the end of each module."""
    pieces = []
    for module in re.split(r"(?<=^endmodule\n)", verilog, flags=re.MULTILINE):
        values = [f"    {match['name']} = {match['value']};\n" for match in _REGISTER.finditer(module)]
        text = _REGISTER.sub(r"\1\g<name>\g<end>", module)
        if values:
            text = text.removesuffix("endmodule\n") + f"  initial begin\n{''.join(values)}  end\nendmodule\n"
        pieces.append(text)
    return "".join(pieces)
