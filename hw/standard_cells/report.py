"""Area, delay and energy of cores, and of the systolic array alone, in standard cells."""

import json
from collections import Counter
from dataclasses import asdict

from ..array.systolic_array import SystolicArray
from ..fpga.netlist import CORE, BlockHierarchy
from ..tools.process import lock, write_whole
from ..verilog.export import component_to_verilog, to_verilog
from .energy import energy_per_cycle, run_cell
from .layout import cell_layout, need_qflow
from .mapping import map_design

__all__ = ["LEFT_OUT", "array_figures", "core_report"]

#: The parts that the figures leave out, as the command prints them.
LEFT_OUT = (
    "Left out: wires, the clock tree, test logic, and memories, whose bits are counted. The delay excludes clock to output and "
    "setup of registers. The energy excludes leakage; its higher value has the glitches of equal gate delays."
)


def _own(mapped, library):
    """Returns {module: Counter of `area`, `registers`, `memory_bits`} of the cells of each module itself."""
    own = {}
    for module, types in mapped.modules.items():
        own[module] = counts = Counter()
        for name, number in types.items():
            if cell := library.cells.get(name):
                counts += Counter({"area": number * cell.area, "registers": number * bool(cell.register)})
        for cell in mapped.netlist[module]["cells"].values():
            if cell["type"] == "$mem_v2":
                counts["memory_bits"] += int(cell["parameters"]["SIZE"], 2) * int(cell["parameters"]["WIDTH"], 2)
    return own


def _totals(mapped, library):
    """Returns `(own, totals)`: the counts of each module, without and with the modules inside."""
    own, totals = _own(mapped, library), {}

    def total(module):
        if module not in totals:
            totals[module] = counts = Counter(own[module])
            for name, number in mapped.modules[module].items():
                if name in mapped.modules:
                    counts.update({what: number * count for what, count in total(name).items()})
        return totals[module]

    for module in mapped.modules:
        total(module)
    return own, totals


def _figures(counts, gate):
    return {
        "area_um2": counts["area"],
        "gate_equivalents": round(counts["area"] / gate),
        "registers": counts["registers"],
        "memory_bits": counts["memory_bits"],
    }


def _cell_figures(mapped, totals, library, gate):
    """Returns the figures of the array's cell: see :func:`core_report`."""
    run, _, _, cycles = run_cell(mapped.netlist["tpu_cell"], library)
    types = mapped.modules["tpu_cell"]
    return {
        **_figures(totals["tpu_cell"], gate),
        "delay_ns": mapped.delays["tpu_cell"] * 1e9,
        "energy_pj": energy_per_cycle(run, library, cycles, run.settled) * 1e12,
        "energy_with_glitches_pj": energy_per_cycle(run, library, cycles, run.all_edges) * 1e12,
        "leakage_uw": sum(library.cells[name].leakage * number for name, number in types.items()) * 1e6,
    }


def array_figures(n, stages, text, library, folder, progress=None):
    """Returns `(figures of the cell, figures of the array)` of an array of n x n cells. Figures: see :func:`core_report`.

    The energy of the array is `n * n` times the cell's, an extrapolation: each cell has random operands of its own.
    """
    verilog = component_to_verilog(SystolicArray(n=n, stages=stages), name="tpu_array")
    mapped = map_design(verilog, "tpu_array", text, library, folder, progress=progress)
    _, totals = _totals(mapped, library)
    gate = library.smallest("NAND of two inputs", 1, 1, 1, 0).area
    cell, array = _cell_figures(mapped, totals, library, gate), _figures(totals["tpu_array"], gate)
    return cell, array | {f"energy{kind}_pj": n * n * cell[f"energy{kind}_pj"] for kind in ("", "_with_glitches")}


def core_report(config, text, library, folder, *, target, pnr=False, progress=None):
    """Maps a core to standard cells in `folder`, which keeps the logs and `report.json`. With `pnr`, also places and routes the
    cell, in its folder `layout`.

    Returns
    -------
    dict
        `target`, `library`, `n`, `config`; `blocks`: {block: figures} with `area_um2`, `gate_equivalents` (areas of the smallest
        NAND of two inputs), `registers` and `memory_bits`; the same figures of the whole core; `cell`: the array's cell, also
        with `delay_ns`, `energy_pj` and `energy_with_glitches_pj` per multiply-accumulate, and `leakage_uw`; `layout`: its
        :func:`layout_figures` or None; `slowest_module` and `slowest_delay_ns`: the module with the longest path; `left_out`.

    Raises
    ------
    LibertyError
        If the library lacks a cell that is needed.
    hw.tools.process.ToolError
        If a tool is missing, fails or exceeds its time limit.
    """
    gate = library.smallest("NAND of two inputs", 1, 1, 1, 0).area
    if pnr:
        need_qflow(target, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "synth.lock", timeout=1):
        (folder / "report.json").unlink(missing_ok=True)
        verilog = to_verilog(config)
        mapped = map_design(verilog, "tpu", text, library, folder, progress=progress)
        own, totals = _totals(mapped, library)
        layout = BlockHierarchy(verilog, "tpu")
        blocks = {name: _figures(totals[module], gate) for name, module in layout.blocks.values()}
        blocks[CORE] = _figures(own["tpu"], gate)
        slowest = max(mapped.delays, key=mapped.delays.get)
        report = {
            "target": target,
            "library": library.name,
            "n": config.n,
            "config": asdict(config),
            "blocks": dict(sorted(blocks.items(), key=lambda entry: -entry[1]["area_um2"])),
            **_figures(totals["tpu"], gate),
            "cell": _cell_figures(mapped, totals, library, gate),
            "layout": cell_layout(mapped.netlist["tpu_cell"], target, folder / "layout", progress=progress) if pnr else None,
            "slowest_module": slowest,
            "slowest_delay_ns": mapped.delays[slowest] * 1e9,
            "left_out": LEFT_OUT,
        }
        write_whole(folder / "report.json", json.dumps(report, indent=1))
    return report
