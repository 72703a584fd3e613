"""Synthesis by Yosys: resources by block, and the netlist for place and route."""

import json

from ..tools.process import write_whole
from ..tools.run_tool import run_tool
from .carry_starts import free_carry_starts
from .multiplier_registers import move_registers
from .netlist import BlockHierarchy, module_digests, registers_for_memories
from .output_registers import take_in_output_registers
from .register_copies import copy_registers

__all__ = ["SynthesisError", "synthesize"]

_TIMEOUT = 3600

#: Latches are searched before technology mapping, as some families implement them in LUTs.
_READ = """
{before}
read_verilog -sv design.v
hierarchy -top {top}
proc
tee -o latches.txt select -list t:$dlatch t:$adlatch t:$dlatchsr
"""

#: Hierarchical synthesis: fast, as each repeated module is synthesized once.
_HIERARCHICAL = (
    _READ
    + """
{known}
{synthesis} {hierarchical} -top {top}
tee -o stat.json stat -json
"""
)

#: Flat synthesis: each block is flattened and mapped on its own; then all blocks are merged into one module. Yosys' LUT mapper
#: loses the names of the cells that it maps. The blocks are merged after it, so each cell's path and the report by block are
#: exact.
_FLAT = (
    _READ
    + """
{keep}
{synthesis} {flat} -top {top} -run begin:check
autoname
setattr -mod -unset keep_hierarchy A:keep_hierarchy
flatten
opt_clean
{pads}
{synthesis} {flat} -top {top} -json mapped.json -run check:
"""
)


class SynthesisError(RuntimeError):
    """The error of a design or a netlist that cannot be used. Its message names the cause and the remedy."""


def synthesize(verilog, target, folder, *, top, flat, across_blocks=False, known=None, progress=None):
    """Runs Yosys in `folder`. It writes `design.v`, `synth.ys`, `yosys.log` and, if `flat`, `netlist.json`.

    Parameters
    ----------
    verilog : str
        The core, module `tpu`, and the modules around it.
    top : str
        Top module.
    flat : bool
        Flatten, for place and route. False keeps the hierarchy, which is faster.
    across_blocks : bool
        Flatten before technology mapping. Then Yosys optimises paths across blocks. The names of the mapped cells come from
        nearby nets, so the counts by block are only approximate.
    known : dict or None
        {digest of a module: {cell: number}} of earlier syntheses for the same family. These modules are not synthesized again,
        and the new modules are added. Unless `flat`.

    Returns
    -------
    blocks : dict
        {block: {resource: count}}.
    memories : dict
        Memories that became flip-flops, {name: bits}.
    registered : int or None
        Block RAMs that use their output registers. None if unknown: only flat ECP5 netlists get them.
    layout : hw.fpga.netlist.BlockHierarchy

    Raises
    ------
    hw.tools.process.ToolError
        If Yosys is missing or fails.
    SynthesisError
        If the design has a latch.
    """
    family, part = target.family, target.part
    (folder / "design.v").write_text(verilog)
    layout = BlockHierarchy(verilog, top)
    digests = module_digests(verilog)
    again = sorted(module for module, digest in digests.items() if digest in (known or {}) and module != top)
    kept = sorted({*layout.chain, *(module for _, module in layout.blocks.values())} - {top})
    script = (_FLAT if flat else _HIERARCHICAL).format(
        synthesis=f"{family.synthesis} {part.synthesis}",
        flat=family.flat,
        hierarchical=family.hierarchical,
        top=top,
        before=family.before,
        pads=family.pads,
        known=f"blackbox {' '.join(again)}" if again else "",
        keep="" if across_blocks else f"setattr -mod -set keep_hierarchy 1 {' '.join(kept)}",
    )
    (folder / "synth.ys").write_text(script)
    run_tool(
        "yosys",
        ["-q", "-l", "yosys.log", "-s", "synth.ys"],
        folder=folder,
        makes="mapped.json" if flat else "stat.json",
        log="yosys.log",
        timeout=_TIMEOUT,
        progress=progress,
    )
    latches = (folder / "latches.txt").read_text().split()
    if latches:
        raise SynthesisError(f"latches: {', '.join(latches[:3])}; every register must have a clock")
    registered = None
    if flat:
        netlist = json.loads((folder / "mapped.json").read_text())
        flattened = netlist["modules"][top]
        taken = take_in_output_registers(flattened)
        freed = free_carry_starts(flattened)
        if freed + taken + move_registers(netlist) + copy_registers(flattened, layout):
            write_whole(folder / "mapped.json", json.dumps(netlist))
        (folder / "mapped.json").replace(folder / "netlist.json")  # so `netlist.json` is whole, whenever a process ends
        registered = taken if family.name == "ecp5" else None
        blocks = layout.count_flat(flattened["cells"], family.cells)
    else:
        statistics = json.loads((folder / "stat.json").read_text())["modules"]
        cells = {
            name.removeprefix("\\"): {cell.removeprefix("\\"): number for cell, number in module["num_cells_by_type"].items()}
            for name, module in statistics.items()
        }
        known = {} if known is None else known
        known |= {digests[name]: counts for name, counts in cells.items() if name in digests and name not in again}
        modules = {**cells, **{name: known[digests[name]] for name in again}}
        blocks = layout.count_modules(modules, family.cells)
    memories = registers_for_memories((folder / "yosys.log").read_text(), verilog)
    return blocks, memories, registered, layout
