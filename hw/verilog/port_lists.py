"""Port lists that a person can read: one port a line, with its direction and width, in the order of the interface."""

import re

__all__ = ["with_port_lists"]

_MODULE = re.compile(r"^module (\S+?) ?\(([^;]*)\);\n", re.MULTILINE)
_PORT = re.compile(
    r"^  (input|output) (?P<what>(?:\[[^]]*\] )?(?P<name>\S+)) ?;\n"
    r"  (wire|reg) (?P=what) ?(?P<init> = [^;\n]*)?;\n",
    re.MULTILINE,
)
#: Of a port: whose of several cores it is, and its name there.
_CORE = re.compile(r"(core\d_)?(.*)")


def _rank(name):
    """By core where there are several: clock and reset, then each interface with its channels together, then the rest."""
    core, name = _CORE.match(name).groups(default="")
    if name in ("aclk", "aresetn", "clk", "rst", "bus_rst"):
        return core, 0, name
    for rank, prefix in enumerate(
        (
            *("s_axil_aw", "s_axil_w", "s_axil_b", "s_axil_ar", "s_axil_r"),
            *("m_axi_aw", "m_axi_w", "m_axi_b", "m_axi_ar", "m_axi_r", "s_axis_ring_", "m_axis_ring_"),
        ),
        start=1,
    ):
        if name.startswith(prefix):
            return core, rank, ""
    return core, 99, ""


def _declaration(match):
    """A port as the head of a module has it."""
    end = " " if match["name"].startswith("\\") else ""  # of an escaped name
    return f"{match[1]:6} {match[4]:4} {match['what']}{end}{match['init'] or ''}"


def with_port_lists(verilog):
    """The same Verilog, with the directions and widths of the ports in the head of each module."""
    pieces, position = [], 0
    heads = list(_MODULE.finditer(verilog))
    for head, following in zip(heads, [*heads[1:], None]):
        end = following.start() if following else len(verilog)
        body = verilog[head.end() : end]
        ports = {match["name"]: _declaration(match) for match in _PORT.finditer(body)}
        assert len(ports) == len(head[2].split(",")), f"module {head[1]}: a port of Yosys' text was not understood"
        lines = ",\n".join("  " + ports[name] for name in sorted(ports, key=_rank))
        pieces += [verilog[position : head.start()], f"module {head[1]} (\n{lines}\n);\n", _PORT.sub("", body)]
        position = end
    return "".join(pieces)
