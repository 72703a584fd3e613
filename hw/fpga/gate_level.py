"""ECP5 netlists made by Yosys. The netlist of a core is for gate-level simulation. The netlist of a cell is for a proof that it
is equivalent to its source."""

import re
import time
from dataclasses import dataclass

from ..array.cell import Cell
from ..tools.process import ToolError
from ..tools.yosys import run_yosys
from ..verilog.export import component_to_verilog
from .targets import FAMILIES

__all__ = ["CELL_TO_NETLIST", "Equivalence", "core_netlist", "netlist_logic", "cell_netlist", "cell_equivalence", "flip_lut_bit"]

#: Yosys commands: read a netlist, and the simulation models of lookup tables, carry chains, registers and distributed memories.
_READ_NETLIST = """
read_verilog -D NO_INCLUDES +/ecp5/cells_sim.v
read_verilog netlist.v
"""

_SYNTHESIS_OF_CELL = f"{FAMILIES['ecp5'].synthesis} -nodsp -top dut"

#: Yosys commands: map a flat cell, module `dut`, to a netlist of lookup tables, and replace each by its simulation model.
CELL_TO_NETLIST = f"""
{_SYNTHESIS_OF_CELL}
write_verilog -noattr netlist.v
design -reset
{_READ_NETLIST}
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

#: Yosys commands: map to lookup tables without the optimisations that take most of the time.
_QUICK = """
{synthesis} -run begin:map_luts
abc -lut 4 -script abc.txt
clean
{synthesis} -run map_cells:check
"""

#: Yosys commands: replace all cells but block memories and multipliers by their simulation models, within each module.
_LOGIC = f"""
read_verilog -lib +/ecp5/cells_bb.v
{_READ_NETLIST}
hierarchy -check -top tpu
proc
setattr -mod -set keep_hierarchy 1 tpu tpu_*
flatten
opt_clean -purge
write_verilog -noattr logic.v
"""

#: Yosys commands: flatten, so that each register has one name only, the same as in the netlist.
_FLATTEN = """
read_verilog -sv design.v
hierarchy -check -top dut
proc
flatten
opt_clean -purge
write_verilog -sv -noattr flat.v
"""

#: Yosys commands: remove unread register bits from the source, as the netlist does not have them, and compare the two.
_EQUIVALENCE = f"""
{_READ_NETLIST}
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


def core_netlist(verilog, *, quick=False, timeout=1800):
    """Synthesizes a core. Returns the Verilog text of its netlist, module by module, with block memories and multipliers. If
    `quick`, lookup tables are mapped without optimisation, in a sixth of the time."""
    family = FAMILIES["ecp5"]
    synthesis = f"{family.synthesis} {family.hierarchical} -top tpu"
    script = _SYNTHESIS.format(synthesis=_QUICK.format(synthesis=synthesis) if quick else synthesis)
    return run_yosys(script, {"design.v": verilog, "abc.txt": "strash\nif -K 4\n"}, "netlist.v", timeout=timeout)


def netlist_logic(netlist, *, timeout=1800):
    """Returns the Verilog text of a core's netlist with logic in the place of its cells, except block memories and multipliers.

    Icarus Verilog needs minutes for the instances of small cells, and seconds for their logic.
    """
    return run_yosys(_LOGIC, {"netlist.v": netlist}, "logic.v", timeout=timeout)


def cell_netlist(stages, *, timeout=600):
    """Synthesizes a cell. Returns `(source, netlist)`: its Verilog, as module `dut`, and its netlist of lookup tables and
    registers only."""
    source = component_to_verilog(Cell(stages=stages), name="dut")
    source = run_yosys(_FLATTEN, {"design.v": source}, "flat.v", timeout=timeout)
    return source, run_yosys(_SYNTHESIS.format(synthesis=_SYNTHESIS_OF_CELL), {"design.v": source}, "netlist.v", timeout=timeout)


def flip_lut_bit(netlist, lut, bit):
    """Returns a netlist in which one bit of one lookup table is flipped. `lut` is the index of the table, in the order of the
    text."""
    tables = list(re.finditer(r"\bLUT4 #\(\s*\.INIT\(16'h([0-9a-f]{4})\)", netlist))
    start, end = tables[lut].span(1)
    return f"{netlist[:start]}{int(tables[lut][1], 16) ^ 1 << bit:04x}{netlist[end:]}"


@dataclass(frozen=True)
class Equivalence:
    """The result of an equivalence check. `pairs` is the number of output and register bits with equal names in both designs;
    `proven` of these pairs were proven equal."""

    pairs: int
    proven: int
    seconds: float


def cell_equivalence(source, netlist, *, timeout=1800):
    """Compares a cell's netlist with its source by Yosys' induction over cycles. Returns the :class:`Equivalence`.

    If all pairs are proven, this holds: when all pairs are equal in three successive cycles, they are equal in all later cycles.
    """
    started = time.monotonic()
    status = run_yosys(_EQUIVALENCE, {"design.v": source, "netlist.v": netlist}, "status.txt", timeout=timeout)
    found = re.search(r"Of those cells (\d+) are proven and (\d+) are unproven", status)
    if found is None:
        raise ToolError("yosys compared nothing")
    proven, unproven = map(int, found.groups())
    return Equivalence(proven + unproven, proven, time.monotonic() - started)
