"""Readable port lists: one port per line, with its direction and width, in the order of the interfaces."""

import re

__all__ = ["ports_of", "with_port_lists"]

_MODULE = re.compile(r"^module (\S+?) ?\(([^;]*)\);\n", re.MULTILINE)
_PORT = re.compile(
    r"^  (input|output) (?P<what>(?:\[[^]]*\] )?(?P<name>\S+)) ?;\n"
    r"  (wire|reg) (?P=what) ?(?P<init> = [^;\n]*)?;\n",
    re.MULTILINE,
)
#: A port name: the prefix of the core if there are several cores, and the rest of the name.
_CORE = re.compile(r"(core\d_)?(.*)")


def _rank(name):
    """Returns the sort key of a port. Ports are sorted by core. Within a core, clock and reset are first, then each interface,
    channel by channel, then all other ports."""
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
    """Returns the text that declares a port in the header of a module. `match` is the match of its declaration in the body."""
    end = " " if match["name"].startswith("\\") else ""  # ends an escaped name
    return f"{match[1]:6} {match[4]:4} {match['what']}{end}{match['init'] or ''}"


def with_port_lists(verilog):
    """Returns the Verilog text with the directions and widths of ports moved into the header of each module."""
    pieces, position = [], 0
    heads = list(_MODULE.finditer(verilog))
    for head, following in zip(heads, [*heads[1:], None]):
        end = following.start() if following else len(verilog)
        body = verilog[head.end() : end]
        ports = {match["name"]: _declaration(match) for match in _PORT.finditer(body)}
        assert len(ports) == len(head[2].split(",")), f"module {head[1]}: cannot parse a port in Yosys' output"
        lines = ",\n".join("  " + ports[name] for name in sorted(ports, key=_rank))
        pieces += [verilog[position : head.start()], f"module {head[1]} (\n{lines}\n);\n", _PORT.sub("", body)]
        position = end
    return "".join(pieces)


def ports_of(verilog, module):
    """Returns the ports of a module as a list of `(name, "input" or "output", width)`. `verilog` is a text by
    :func:`with_port_lists`."""
    head = re.search(rf"^module {re.escape(module)} \(\n(.*?)\n\);\n", verilog, re.MULTILINE | re.DOTALL)[1]
    found = re.findall(r"^  (input|output) +(?:wire|reg) +(?:\[(\d+):0\] )?(\w+)", head, re.MULTILINE)
    return [(name, direction, int(last or 0) + 1) for direction, last, name in found]
