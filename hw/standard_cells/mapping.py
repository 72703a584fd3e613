"""Mapping of a design to standard cells by Yosys and ABC."""

import json
import re
from dataclasses import dataclass

from ..tools.run_tool import run_tool

__all__ = ["Mapped", "map_design"]

_TIMEOUT = 3600
_LOAD = 4  # input capacitances of the smallest inverter at each output, for ABC

#: The cell becomes one flat module; the other modules keep their hierarchy. Memories stay whole: on a chip they are macros,
#: which a Liberty file of cells does not describe. Registers have no initial values.
_SCRIPT = """
read_verilog -sv design.v
hierarchy -check -top {top}
flatten tpu_cell
synth -top {top} -run begin:fine
setattr -unset init w:*
opt -fast -full
opt -undriven -fine
techmap
opt -fast
dfflibmap -liberty library.lib
opt -fast
{abc}
opt_clean -purge
tee -o stat.json stat -liberty library.lib -json
write_json netlist.json
"""

#: ABC's script. It restructures the logic twice for the shortest paths, then inserts buffers and chooses sizes of cells. Yosys'
#: own script for libraries saves area: a cell of three stages then takes 11.3 ns in place of 6.8.
_FAST = "strash;ifraig;dch,-f;if,-g;strash;&get,-n;&dch;&nf;&put;buffer,-c;topo;upsize;dnsize;stime,-p"

#: One call per module: a call for several modules logs their delays in no fixed order.
_ABC = f"log mapped {{module}}\nabc -liberty library.lib -constr abc.constr -script +{_FAST} {{module}}"

_DECLARED = re.compile(r"^module (\w+)", re.MULTILINE)
_MAPPED = re.compile(r"^mapped (\w+)$")
_DELAY = re.compile(r"ABC: .*Delay = *([\d.]+) ps")


@dataclass(frozen=True)
class Mapped:
    """A mapped design."""

    modules: dict  # {module: {type of cell: number}}. Other modules and memories (`$mem_v2`) are types, too.
    delays: dict  # {module: ABC's longest path between its registers, ports and memories, in seconds}
    netlist: dict  # yosys' JSON: {module: {"ports": ..., "cells": ...}}


def map_design(verilog, top, text, library, folder, *, progress=None):
    """Maps a design with the module `tpu_cell` to the cells of a Liberty file in `folder`, which keeps the logs. Returns it as
    :class:`Mapped`.

    Parameters
    ----------
    verilog : str
    top : str
        Top module.
    text : str
        The Liberty file.
    library : hw.standard_cells.liberty.Library
        The same file, parsed.
    progress : callable or None
        See :func:`hw.tools.run_tool.run_tool`.

    Raises
    ------
    hw.tools.process.ToolError
        If Yosys is missing or fails.
    LibertyError
        If the library has no inverter.
    """
    inverter = library.smallest("inverter", 1, 0)
    load = _LOAD * inverter.pins[inverter.inputs[0]].capacitance * 1e15
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "design.v").write_text(verilog)
    (folder / "library.lib").write_text(text)
    (folder / "abc.constr").write_text(f"set_driving_cell {inverter.name}\nset_load {load:.3f}\n")
    kept = [module for module in _DECLARED.findall(verilog) if not module.startswith("tpu_cell_")]
    (folder / "synth.ys").write_text(_SCRIPT.format(top=top, abc="\n".join(_ABC.format(module=module) for module in kept)))
    words = ["-q", "-l", "yosys.log", "-s", "synth.ys"]
    run_tool("yosys", words, folder=folder, makes="netlist.json", log="yosys.log", timeout=_TIMEOUT, progress=progress)
    statistics = json.loads((folder / "stat.json").read_text())["modules"]
    modules = {
        name.removeprefix("\\"): {cell.removeprefix("\\"): count for cell, count in module["num_cells_by_type"].items()}
        for name, module in statistics.items()
    }
    return Mapped(
        modules, _delays((folder / "yosys.log").read_text()), json.loads((folder / "netlist.json").read_text())["modules"]
    )


def _delays(log):
    """Returns {module: seconds} from Yosys' log."""
    delays, module = {}, None
    for line in log.splitlines():
        if found := _MAPPED.match(line):
            module = found[1]
        elif (found := _DELAY.search(line)) and module:
            delays[module] = float(found[1]) * 1e-12
    return delays
