"""Yosys on a core: what it takes on an FPGA."""

import json

from hw.export import to_verilog
from hw.yosys import run_yosys

__all__ = ["synthesize", "TARGETS"]


#: target: Yosys command, and what each of its cells counts as: {cell: (resource, count)}. A CCU2C is two LUTs.
TARGETS = {
    "ecp5": ("synth_ecp5 -nowidelut -noflatten", {
        "LUT4": ("lut", 1), "CCU2C": ("lut", 2), "TRELLIS_DPR16X4": ("lut", 4), "TRELLIS_FF": ("ff", 1),
        "MULT18X18D": ("dsp", 1), "DP16KD": ("bram", 1)}),
    "ice40": ("synth_ice40 -dsp -noflatten", {
        "SB_LUT4": ("lut", 1), **{f"SB_DFF{kind}": ("ff", 1) for kind in ("", "E", "SR", "ESR", "SS", "ESS", "R", "ER", "S", "ES")},
        "SB_MAC16": ("dsp", 1), "SB_RAM40_4K": ("bram", 1)}),
    "xilinx7": ("synth_xilinx -family xc7 -noiopad -noclkbuf", {
        **{f"LUT{size}": ("lut", 1) for size in range(1, 7)}, "RAM32M": ("lut", 4), "RAM64M": ("lut", 4),
        "RAM32X1D": ("lut", 2), "RAM64X1D": ("lut", 2), "SRL16E": ("lut", 1), "SRLC32E": ("lut", 1),
        **{kind: ("ff", 1) for kind in ("FDRE", "FDSE", "FDCE", "FDPE")},
        "DSP48E1": ("dsp", 1), "RAMB18E1": ("bram", 1), "RAMB36E1": ("bram", 2)}),
}

_SCRIPT = """
read_verilog -sv design.v
{synthesis} -top tpu
tee -o stat.json stat -json
"""

_RESOURCES = ("lut", "ff", "dsp", "bram")


def synthesize(config, target):
    """Synthesizes a core, module by module, without place and route.

    Returns
    -------
    dict
        `target`, `n`; `lut`, `ff`, `dsp`, `bram` of the whole core (`bram`: blocks of 16 to 18 kbit, 4 kbit on iCE40);
        `blocks`, the same for each submodule of the top and what is below it.

    Raises
    ------
    YosysError
        When Yosys fails.
    """
    synthesis, cells = TARGETS[target]
    statistics = run_yosys(_SCRIPT.format(synthesis=synthesis), {"design.v": to_verilog(config)}, "stat.json", timeout=3600)
    modules = json.loads(statistics)["modules"]
    modules = {name.removeprefix("\\"): module["num_cells_by_type"] for name, module in modules.items()}
    totals = {}

    def total(name):
        if name not in totals:
            counts = dict.fromkeys(_RESOURCES, 0)
            for cell, number in modules[name].items():
                cell = cell.removeprefix("\\")
                if cell in modules:
                    for resource, count in total(cell).items():
                        counts[resource] += number * count
                elif cell in cells:
                    resource, count = cells[cell]
                    counts[resource] += number * count
            totals[name] = counts
        return totals[name]

    blocks = {cell.removeprefix("\\").removeprefix("tpu_"): total(cell.removeprefix("\\"))
              for cell in modules["tpu"] if cell.removeprefix("\\") in modules}
    return {"target": target, "n": config.n, **total("tpu"),
            "blocks": dict(sorted(blocks.items(), key=lambda block: -block[1]["lut"]))}
