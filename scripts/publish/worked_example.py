"""The worked example of the datasheet: a program in hexadecimal, with the memory before and after its execution.

A test reads the example from the datasheet and executes it.
"""

import numpy as np

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Format, FunctionCode, Opcode, Region
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.isa_model import Machine

from ..show.markdown import markdown_table

__all__ = ["CONFIG", "worked_example"]

#: Configuration of the example's core.
CONFIG = Config(n=2, **PLAIN)

_BIASES, _WEIGHTS = 0x100, 0x108
_INPUTS = [[1, 2, 3, 4], [0.5, 1, 2, 0], [-2, 1, 0, 1]]  # [sample][k]
_WEIGHT = [[1, -1], [0.5, 2], [-2, 0.25], [2, 0]]  # [k][column]
_BIAS = [0.5, -1]

_PROGRAM = [
    (Opcode.LOAD, {"region": Region.INPUT, "rows": 6, "offset": 0, "buffer": 0}),
    (Opcode.LOAD_BIAS, {"region": Region.MODEL, "rows": 1, "offset": _BIASES, "bias": 0}),
    (Opcode.LOAD_WEIGHTS, {"region": Region.MODEL, "rows": 2, "offset": _WEIGHTS}),
    (
        Opcode.MATMUL,
        {"start": 1, "buffer": 0, "rows0": 3, "rows0_stride": 1, "rows1": 1, "tiles0": 1, "tiles1": 1, "acc": 0, "bias": 0},
    ),
    (Opcode.MATMUL, {"start": 0, "buffer": 3, "rows0": 3, "rows0_stride": 1, "rows1": 1, "tiles0": 1, "tiles1": 1, "acc": 0}),
    (Opcode.ACTIVATE, {"function": FunctionCode.RELU, "format": Format.BFLOAT16, "rows": 3, "lanes": 2, "buffer": 6, "acc": 0}),
    (Opcode.STORE, {"region": Region.OUTPUT, "rows": 3, "offset": 0, "buffer": 6}),
    (Opcode.HALT, {}),
]


def _text(name, value):
    return (
        f"{name}={value.name if isinstance(value, (Region, FunctionCode, Format)) else hex(value) if name == 'offset' else value}"
    )


def _memory():
    """Yields the contents of memory before the execution, vector by vector: (region, byte offset, values of the lanes,
    meaning)."""
    n, samples = CONFIG.n, len(_INPUTS)
    yield Region.MODEL, _BIASES, np.array(_BIAS, "f4"), "bias row 0"
    for tile in range(2):
        k = f"k = {n * tile}, {n * tile + 1}"
        for column in range(n):
            yield (
                Region.MODEL,
                _WEIGHTS + 2 * n * (n * tile + column),
                np.array([_WEIGHT[n * tile + row][column] for row in range(n)], bfloat16),
                f"tile {tile}, column {column}: {k}",
            )
    for tile in range(2):
        for sample, x in enumerate(_INPUTS):
            yield (
                Region.INPUT,
                2 * n * (samples * tile + sample),
                np.array(x[n * tile : n * (tile + 1)], bfloat16),
                f"sample {sample}, k = {n * tile}, {n * tile + 1}",
            )


def _table(entries):
    rows = []
    for region, offset, values, text in entries:
        words = " ".join(f"{word:0{2 * values.itemsize}X}" for word in values.view(f"u{values.itemsize}"))
        rows.append([region.name, f"0x{offset:03X}", words, ", ".join(f"{float(value):g}" for value in values), text])
    return markdown_table(["region", "offset", "words", "values, lane 0 first", "what"], rows)


def worked_example():
    """Returns the Markdown text of the example: the program, the memory before the execution, and the results of the
    instruction-level model."""
    words = [encode(opcode, **values) for opcode, values in _PROGRAM]
    program = [
        [
            f"0x{CONFIG.instruction_bytes * index:03X}",
            f"`{word:064X}`",
            " ".join([opcode.name, *(_text(*value) for value in values.items())]),
        ]
        for index, (word, (opcode, values)) in enumerate(zip(words, _PROGRAM))
    ]
    regions = {region: bytearray(0x200) for region in (Region.MODEL, Region.INPUT, Region.OUTPUT)}
    for index, word in enumerate(words):
        first = CONFIG.instruction_bytes * index
        regions[Region.MODEL][first : first + 32] = word.to_bytes(32, "little")
    for region, offset, values, _ in _memory():
        regions[region][offset : offset + values.nbytes] = values.tobytes()
    Machine(CONFIG, regions).run()
    found = np.frombuffer(bytes(regions[Region.OUTPUT]), bfloat16).reshape(-1, CONFIG.n)[: len(_INPUTS)]
    results = [(Region.OUTPUT, 2 * CONFIG.n * sample, row, f"sample {sample}") for sample, row in enumerate(found)]
    return "\n\n".join(
        [
            markdown_table(["offset in MODEL", "bits 255:0", "instruction"], program),
            "Before the run:",
            _table(_memory()),
            "After it:",
            _table(results),
        ]
    )
