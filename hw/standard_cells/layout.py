"""Layout of the array's cell by Debian's qflow: placed, routed, and checked against design rules and the mapped netlist."""

import os
import re
import shutil

from ..tools.process import ToolError, execute
from .libraries import LIBRARIES

__all__ = ["cell_layout", "layout_figures", "need_qflow"]

_TOP = "tpu_cell"
_PROGRAMS = ("qflow", "graywolf", "qrouter", "magic", "netgen-lvs")  # and Debian's packages of the same names

#: Steps of qflow and their time limits in seconds. `backanno` is the static timing with the delays of wires. `migrate` extracts
#: the netlist of the layout.
_STEPS = {"place": 1800, "route": 1800, "backanno": 300, "migrate": 600, "drc": 600, "lvs": 300}

#: The line of a step's output that tells the error.
_ERROR = re.compile(r"^(?:.* failure: .*|Design fails LVS.*|.* failed with .*|Error:.*)$", re.MULTILINE | re.IGNORECASE)


def _blif(module):
    """Returns a mapped module of Yosys' JSON as BLIF."""
    names, ports = {"0": "gnd", "1": "vdd"}, {"input": [], "output": []}
    for name, port in module["ports"].items():
        for index, net in enumerate(port["bits"]):
            names[net] = name if len(port["bits"]) == 1 else f"{name}[{index}]"
            ports[port["direction"]].append(names[net])
    lines = [f".model {_TOP}", *(f".{kind}s {' '.join(found)}" for kind, found in ports.items())]
    for cell in module["cells"].values():
        pins = (f"{pin}={names.get(net, f'n{net}')}" for pin, (net,) in cell["connections"].items())
        lines.append(f".gate {cell['type']} {' '.join(pins)}")
    return "\n".join([*lines, ".end", ""])


def _run(step, target, folder):
    """Runs a step of qflow. Returns its output."""
    log = folder / f"qflow-{step}.log"
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY" and not name.startswith("QFLOW_")}
    with open(log, "wb") as printed:
        try:
            words = ["qflow", "-T", target, "-p", str(folder), step, _TOP]
            status = execute(words, cwd=folder, env=environment, log=printed, timeout=_STEPS[step])
        except TimeoutError as error:
            raise ToolError(f"{error} in its step {step}; its log is {log}") from None
    text = log.read_text(errors="replace")
    if status:
        said = _ERROR.findall(text) or text.split("\n")[-2:-1] or ["nothing"]
        raise ToolError(f"qflow {step} stopped with status {status}; it said: {' '.join(said[0].split())} (log: {log})")
    return text


def _wires(layout):
    """Returns `(routed nets, length of their wires in the unit of the file)` of a DEF file."""
    nets = re.findall(r"^- .*?;$", layout.partition("\nNETS ")[2].partition("\nEND NETS")[0], re.MULTILINE | re.DOTALL)
    length = 0
    for net in nets:
        for wire in re.split(r"\b(?:ROUTED|NEW)\b", net)[1:]:
            x = y = None
            for column, row in re.findall(r"\( (\*|-?\d+) (\*|-?\d+) ", wire):
                before, x, y = (x, y), x if column == "*" else int(column), y if row == "*" else int(row)
                if before[0] is not None:
                    length += abs(x - before[0]) + abs(y - before[1])
    return sum(" ROUTED " in net for net in nets), length


def layout_figures(layout, timing, rules, comparison):
    """Returns the figures of a layout from the files of qflow.

    Parameters
    ----------
    layout : str
        The routed DEF file.
    timing, rules, comparison : str
        Outputs of vesta, of magic's check of design rules, and of netgen.

    Returns
    -------
    dict
        `area_um2`; `cells`, without cells that only fill rows; `nets`: those with wires; `wire_mm`; `delay_ns`: the longest path
        between registers or from an input, with wires, clock to output and setup; `drc_errors` and `lvs_errors`, which are 0.

    Raises
    ------
    ToolError
        If a figure is missing, or a check found errors or did not end.
    """
    drc, lvs = re.findall(r"^drc = (\d+)$", rules, re.MULTILINE), re.findall(r"^Total errors = (\d+)$", comparison, re.MULTILINE)
    if drc != ["0"]:
        raise ToolError(f"design rules of the layout: {drc[-1] if drc else 'unknown'} errors; see qflow-drc.log")
    if lvs != ["0"] or "Circuits match uniquely." not in comparison:
        raise ToolError(f"the layout is not the mapped netlist: {lvs[-1] if lvs else 'unknown'} errors; see qflow-lvs.log")
    unit = re.search(r"^UNITS DISTANCE MICRONS (\d+)", layout, re.MULTILINE)
    outline = re.search(r"^DIEAREA \( (\S+) (\S+) \) \( (\S+) (\S+) \)", layout, re.MULTILINE)
    delays = re.findall(r"^Path (?!input pin clk ).* delay ([\d.e+]+) ps$", timing, re.MULTILINE)
    if not unit or not outline or not delays:
        raise ToolError("qflow left no outline of the layout or no delay; see qflow-route.log and qflow-backanno.log")
    micron = int(unit[1])
    left, lower, right, upper = (int(number) / micron for number in outline.groups())
    placed = re.findall(r"^- \S+ (\S+) \+ ", layout.partition("\nCOMPONENTS ")[2].partition("\nEND COMP")[0], re.MULTILINE)
    nets, length = _wires(layout)
    return {
        "area_um2": (right - left) * (upper - lower),
        "cells": sum(name != "FILL" for name in placed),
        "nets": nets,
        "wire_mm": length / micron / 1e3,
        "delay_ns": max(map(float, delays)) / 1e3,
        "drc_errors": int(drc[0]),
        "lvs_errors": int(lvs[0]),
    }


def need_qflow(target, folder):
    """Raises ToolError if a program is missing, or if qflow cannot work in a folder with this name."""
    if missing := [name for name in _PROGRAMS if not shutil.which(name)]:
        packages = " ".join((*_PROGRAMS, LIBRARIES[target][1]))
        raise ToolError(f"{missing[0]} not found; install the programs with: apt install {packages}")
    if not re.fullmatch(r"[\w./+-]+", str(folder.resolve())):
        raise ToolError(f"qflow cannot work in {folder}; name a folder without spaces and the like with -o")


def cell_layout(module, target, folder, *, progress=None):
    """Places and routes a mapped cell. Returns :func:`layout_figures`. The folder keeps the layout (`tpu_cell.def`,
    `tpu_cell.mag`), its netlist (`tpu_cell.spice`) and the logs.

    Parameters
    ----------
    module : dict
        The cell in Yosys' JSON. It is not mapped again.
    target : str
        A name in `LIBRARIES`.
    progress : callable or None
        Called with `qflow` and the step.

    Raises
    ------
    ToolError
        If a program is missing, fails or takes too long, not all nets are routed, or a check finds errors.
    """
    need_qflow(target, folder)
    folder = folder.resolve()
    (folder / "log").mkdir(parents=True, exist_ok=True)
    (folder / "log" / "synth.log").touch()  # the steps before placement are not qflow's
    (folder / f"{_TOP}.v").write_text(f"module {_TOP};\nendmodule\n")
    (folder / f"{_TOP}_powerground").write_text('set vddnet="vdd"\nset gndnet="gnd"\n')
    (folder / f"{_TOP}.blif").write_text(_blif(module))
    said = {}
    for step in _STEPS:
        if progress:
            progress("qflow", step)
        said[step] = _run(step, target, folder)
    return layout_figures((folder / f"{_TOP}.def").read_text(), *(said[step] for step in ("backanno", "drc", "lvs")))
