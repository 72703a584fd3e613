"""Netlists as Yosys makes them for the ECP5: of a core, to be simulated, and of a cell, to be proven equal to its source."""

import re
import time
from dataclasses import dataclass

from ..array.cell import Cell
from ..tools.process import ToolError
from ..tools.yosys import run_yosys
from ..verilog.export import component_to_verilog
from .targets import FAMILIES

__all__ = ["CELL_TO_NETLIST", "Equivalence", "core_netlist", "cell_netlist", "cell_equivalence", "flip_lut_bit"]

_SYNTHESIS_OF_CELL = f"{FAMILIES['ecp5'].synthesis} -nodsp -top dut"

#: Yosys commands: a flat cell, module `dut`, becomes its netlist of look-up tables, each of them its model.
CELL_TO_NETLIST = f"""
{_SYNTHESIS_OF_CELL}
write_verilog -noattr netlist.v
design -reset
read_verilog -D NO_INCLUDES +/ecp5/cells_sim.v
read_verilog netlist.v
hierarchy -check -top dut
proc
flatten
opt
"""

_SYNTHESIS = """
read_verilog -sv design.v
{synthesis}
write_verilog -noattr netlist.v
"""

#: Each register under one name only, which then is its name in the netlist too.
_FLATTEN = """
read_verilog -sv design.v
hierarchy -check -top dut
proc
flatten
opt_clean -purge
write_verilog -sv -noattr flat.v
"""

#: The source loses the bits of its registers that nothing reads, as they have no counterpart in the netlist.
_EQUIVALENCE = """
read_verilog -D NO_INCLUDES +/ecp5/cells_sim.v
read_verilog netlist.v
hierarchy -check -top dut
proc
flatten
opt
rename dut netlist
design -stash netlist

read_verilog -sv design.v
hierarchy -check -top dut
proc
flatten
opt
simplemap t:$mux t:$dff t:$dffe t:$sdff t:$sdffe t:$sdffce
opt_clean -purge
rename dut source
design -copy-from netlist netlist

equiv_make source netlist equiv
hierarchy -check -top equiv
opt_clean
async2sync
dffunmap
equiv_simple
equiv_induct -seq 3
tee -o status.txt equiv_status
"""


def core_netlist(verilog, *, timeout=1800):
    """Verilog text of the netlist of a core, module by module, with block memories and multipliers."""
    family = FAMILIES["ecp5"]
    synthesis = f"{family.synthesis} {family.hierarchical} -top tpu"
    return run_yosys(_SYNTHESIS.format(synthesis=synthesis), {"design.v": verilog}, "netlist.v", timeout=timeout)


def cell_netlist(stages, *, timeout=600):
    """`(source, netlist)`: Verilog texts of a cell, module `dut`, as it is, and of look-up tables and registers only."""
    source = component_to_verilog(Cell(stages=stages), name="dut")
    source = run_yosys(_FLATTEN, {"design.v": source}, "flat.v", timeout=timeout)
    return source, run_yosys(_SYNTHESIS.format(synthesis=_SYNTHESIS_OF_CELL), {"design.v": source}, "netlist.v", timeout=timeout)


def flip_lut_bit(netlist, lut, bit):
    """A netlist with one bit of one look-up table wrong; `lut` counts them in the order of the text."""
    tables = list(re.finditer(r"\bLUT4 #\(\s*\.INIT\(16'h([0-9a-f]{4})\)", netlist))
    start, end = tables[lut].span(1)
    return f"{netlist[:start]}{int(tables[lut][1], 16) ^ 1 << bit:04x}{netlist[end:]}"


@dataclass(frozen=True)
class Equivalence:
    """Of so many pairs of bits, outputs and registers of the same name, so many are `proven` to stay equal."""

    pairs: int
    proven: int
    seconds: float


def cell_equivalence(source, netlist, *, timeout=1800):
    """Compares a cell's netlist with its source by Yosys' induction over cycles.

    That all pairs are proven means: if the two agree in all of them in three cycles in a row, they do so for ever after.
    """
    started = time.monotonic()
    status = run_yosys(_EQUIVALENCE, {"design.v": source, "netlist.v": netlist}, "status.txt", timeout=timeout)
    found = re.search(r"Of those cells (\d+) are proven and (\d+) are unproven", status)
    if found is None:
        raise ToolError("yosys compared nothing")
    proven, unproven = map(int, found.groups())
    return Equivalence(proven + unproven, proven, time.monotonic() - started)
