"""Yosys on a design: resources by block, and the netlist that place and route takes."""

import json

from ..tools.run_tool import run_tool
from .multiplier_registers import move_registers
from .netlist import BlockHierarchy, registers_for_memories
from .output_registers import take_in_output_registers

__all__ = ["SynthesisError", "synthesize"]

_TIMEOUT = 3600

#: Latches are looked for where they are still called so: some families make them of LUTs.
_READ = """
{before}
read_verilog -sv design.v
hierarchy -top {top}
proc
tee -o latches.txt select -list t:$dlatch t:$adlatch t:$dlatchsr
"""

#: Each module once, with its hierarchy: quick, as what repeats is synthesized once.
_HIERARCHICAL = (
    _READ
    + """
{synthesis} {hierarchical} -top {top}
tee -o stat.json stat -json
"""
)

#: Each block on its own, flattened; then all of them in one module. Yosys' mapper to LUTs loses the names of what it maps, so
#: blocks that are only then put together are what makes every cell's path, and a report by block, exact.
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
{synthesis} {flat} -top {top} -json netlist.json -run check:
"""
)


class SynthesisError(RuntimeError):
    """The netlist is not what it has to be; the message says what, and how to fix it."""


def synthesize(verilog, target, folder, *, top, flat, across_blocks=False, progress=None):
    """Runs Yosys in `folder`, which gets `design.v`, `synth.ys`, `yosys.log` and, if `flat`, `netlist.json`.

    Parameters
    ----------
    verilog : str
        The core, module `tpu`, and what is around it.
    top : str
        The top module.
    flat : bool
        For place and route; else the hierarchy stays, which is quicker.
    across_blocks : bool
        Flatten before logic is mapped. Then Yosys knows the paths from block to block as a whole, but what is mapped has
        names by nearness, and the counts by block are only roughly right.

    Returns
    -------
    blocks : dict
        Block to {resource: count}.
    memories : dict
        Memories that became flip-flops, and their bits.
    layout : hw.fpga.netlist.BlockHierarchy

    Raises
    ------
    hw.tools.process.ToolError
        When Yosys is missing or fails.
    SynthesisError
        When there is a latch.
    """
    family, part = target.family, target.part
    (folder / "design.v").write_text(verilog)
    layout = BlockHierarchy(verilog, top)
    kept = sorted({*layout.chain, *(module for _, module in layout.blocks.values())} - {top})
    script = (_FLAT if flat else _HIERARCHICAL).format(
        synthesis=f"{family.synthesis} {part.synthesis}",
        flat=family.flat,
        hierarchical=family.hierarchical,
        top=top,
        before=family.before,
        pads=family.pads,
        keep="" if across_blocks else f"setattr -mod -set keep_hierarchy 1 {' '.join(kept)}",
    )
    (folder / "synth.ys").write_text(script)
    run_tool(
        "yosys",
        ["-q", "-l", "yosys.log", "-s", "synth.ys"],
        folder=folder,
        makes="netlist.json" if flat else "stat.json",
        log="yosys.log",
        timeout=_TIMEOUT,
        progress=progress,
    )
    latches = (folder / "latches.txt").read_text().split()
    if latches:
        raise SynthesisError(f"latches: {', '.join(latches[:3])}; every register has to have a clock")
    if flat:
        netlist = json.loads((folder / "netlist.json").read_text())
        if take_in_output_registers(netlist["modules"][top]) + move_registers(netlist):
            (folder / "netlist.json").write_text(json.dumps(netlist))
        blocks = layout.count_flat(netlist["modules"][top]["cells"], family.cells)
    else:
        statistics = json.loads((folder / "stat.json").read_text())["modules"]
        modules = {
            name.removeprefix("\\"): {cell.removeprefix("\\"): number for cell, number in module["num_cells_by_type"].items()}
            for name, module in statistics.items()
        }
        blocks = layout.count_modules(modules, family.cells)
    memories = registers_for_memories((folder / "yosys.log").read_text(), verilog)
    return blocks, memories, layout
