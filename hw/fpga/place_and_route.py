"""Place and route by nextpnr, and the programs that pack its result into a bitstream. Utilisation and timing come from nextpnr's
report."""

import json
import re

from ..tools.run_tool import need, run_tool

__all__ = ["place_and_route", "need_tools", "critical_path", "core_clock", "design_name", "used"]

_TIMEOUT = 4 * 3600
_PACK_TIMEOUT = 900

_PACKERS = {"ecp5": "ecppack", "ice40": "icepack", "himbaechel-gowin": "gowin_pack", "nexus": "prjoxide"}

#: Cells in nextpnr's report for each resource, by nextpnr's family.
_COUNTED = {
    "ecp5": {"lut": ("TRELLIS_COMB",), "ff": ("TRELLIS_FF",), "dsp": ("MULT18X18D",), "bram": ("DP16KD",)},
    "ice40": {"lut": ("ICESTORM_LC",), "dsp": ("ICESTORM_DSP",), "bram": ("ICESTORM_RAM",)},
    "himbaechel-gowin": {"lut": ("LUT4", "ALU"), "ff": ("DFF",), "dsp": ("MULT9X9", "MULT18X18"), "bram": ("BSRAM",)},
    "nexus": {"lut": ("OXIDE_COMB",), "ff": ("OXIDE_FF",), "dsp": ("MULT18_CORE",), "bram": ("OXIDE_EBR",)},
}

#: Suffixes that the tools append to the name of a net or a register to name a cell: `_LUT4_Z_2`, `$CCU2_COMB0`.
_ADDED = re.compile(
    r"(?:_(?:LUT[1-6]|CCU2C|TRELLIS_FF|TRELLIS_DPR16X4|DP16KD|MULT18X18D|SB_\w+?|DFF\w*?|ALU|MUX2_LUT\d)"
    r"(?=_|\$|$)|\$(?:CCU2|DPRAM|RAMW|glb|nextpnr)).*$"
)


def used(report, kind):
    """Returns {resource: number used}, from nextpnr's report. `kind` is nextpnr's name of the family."""
    table = report["utilization"]
    return {resource: sum(table.get(name, {"used": 0})["used"] for name in names) for resource, names in _COUNTED[kind].items()}


def core_clock(report, clock_mhz):
    """Returns the core's clock as a dict: `name`, and `achieved` and `constraint` in MHz.

    The core's clock is the clock with the constraint `clock_mhz`. If there are several such clocks, or none, it is the clock that
    misses its constraint most.
    """
    clocks = [{"name": name, **clock} for name, clock in report["fmax"].items()]
    asked = [clock for clock in clocks if abs(clock["constraint"] - clock_mhz) < 0.02 * clock_mhz]
    return min(asked or clocks, key=lambda clock: clock["achieved"] / clock["constraint"])


def critical_path(report, clock, layout):
    """Returns the steps of a clock's slowest path between registers, from nextpnr's report.

    Returns
    -------
    list of dict
        `kind` ("clk-to-q", "routing", "logic", "setup"), `from` and `to` (names in the design), `from_cell` and `to_cell`
        (names from the tools, with the pin), `net` or None, `block` in which the step ends, `delay_ns`.
    """
    paths = [
        path["path"] for path in report["critical_paths"] if all(path[end].endswith(f"edge {clock}") for end in ("from", "to"))
    ]
    steps = []
    block = None
    for step in max(paths, key=lambda path: sum(step["delay"] for step in path), default=()):
        ends = [step[end]["cell"] for end in ("from", "to")]
        if not ends[1].startswith("$"):
            block = layout.block_of(ends[1])
        steps.append(
            {
                "kind": step["type"],
                "from": design_name(ends[0], layout),
                "to": design_name(ends[1], layout),
                "from_cell": f"{ends[0]}.{step['from']['port']}",
                "to_cell": f"{ends[1]}.{step['to']['port']}",
                "net": step.get("net"),
                "block": block,
                "delay_ns": round(step["delay"], 3),
            }
        )
    return steps


def design_name(cell, layout):
    """Returns the name in the design of a cell of the netlist, relative to the core."""
    return _ADDED.sub("", cell).removeprefix(f"{layout.chain[layout.core]}.") or cell


def need_tools(kind):
    """Raises ToolError if a tool that :func:`place_and_route` runs for this family is not installed."""
    need(f"nextpnr-{kind}")
    need(_PACKERS[kind])


def place_and_route(target, folder, *, constraints=None, seed=1, progress=None):
    """Runs nextpnr and the packer on `netlist.json` in `folder`.

    Parameters
    ----------
    constraints : str or None
        Pins and clocks of a board, in the format of its family's tools.

    Returns
    -------
    report : dict
        nextpnr's report.
    bitstream : pathlib.Path

    Raises
    ------
    hw.tools.process.ToolError
        If a tool is missing, fails or exceeds its time limit.
    """
    kind, part = target.family.place_and_route, target.part
    pins = part.pins if constraints is None else constraints
    pin_options, routed, pack, bitstream = {
        "ecp5": (
            ["--lpf", "pins"] if pins else ["--lpf-allow-unconstrained"],
            ["--textcfg", "routed"],
            ["--compress", "routed", "top.bit"],
            "top.bit",
        ),
        "ice40": (
            ["--pcf", "pins"] if pins else ["--pcf-allow-unconstrained"],
            ["--asc", "routed"],
            ["routed", "top.bin"],
            "top.bin",
        ),
        "himbaechel-gowin": (
            ["--vopt", "cst=pins"],
            ["--write", "routed"],
            ["-d", next((word[7:] for word in target.options if word.startswith("family=")), ""), "-o", "top.fs", "routed"],
            "top.fs",
        ),
        # router2 finds no way from the clock's pin to its buffer.
        "nexus": (["--pdc", "pins", "--router", "router1"], ["--fasm", "routed"], ["pack", "routed", "top.bit"], "top.bit"),
    }[kind]
    (folder / "pins").write_text(pins)
    run_tool(
        f"nextpnr-{kind}",
        [
            *target.options,
            "--json",
            "netlist.json",
            *pin_options,
            *routed,
            "--freq",
            f"{target.clock_mhz:g}",
            "--seed",
            str(seed),
            "--timing-allow-fail",
            "--report",
            "timing.json",
            "-q",
            "-l",
            "nextpnr.log",
        ],
        folder=folder,
        makes="routed",
        log="nextpnr.log",
        timeout=_TIMEOUT,
        progress=progress,
    )
    run_tool(_PACKERS[kind], pack, folder=folder, makes=bitstream, timeout=_PACK_TIMEOUT, progress=progress)
    return json.loads((folder / "timing.json").read_text()), folder / bitstream
