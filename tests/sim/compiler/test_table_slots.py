"""Tests of several functions in the function table. A program loads only the binades that are missing."""

from types import SimpleNamespace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import FunctionCode, Opcode, Region
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.codegen.matrix_emitter import MatrixEmitter
from amaranth_tpu.sim.compiler.codegen.table_slots import TableSlots
from amaranth_tpu.sim.compiler.image import encoded, model_of
from amaranth_tpu.sim.compiler.memory.memories import Ring
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.golden.function_tables import table_of
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.golden.table_lookup import lookup
from amaranth_tpu.sim.ir.graph import dense_chain
from graphs import check, random_values

CONFIG = Config(n=8, unified_buffer_depth=256)
BINADE = 256 // CONFIG.n  # vectors for one sign
FUNCTIONS = [Function("gelu"), Function("inverse_root"), Function("reciprocal"), Function("leaky_relu"), Function("tanh")]


def loads(sequence, sums):
    """Emits loads of functions, in order, and runs the loads. Checks each function at `sums`. Returns the number of vectors that
    each load transfers."""
    tables = [table_of(function) for function in FUNCTIONS]
    firsts = np.cumsum([0, *(len(table.packed()) // CONFIG.vector_bytes for table in tables)])
    model = b"".join(table.packed() for table in tables)
    machine, emitter, loaded = Machine(CONFIG), Emitter(CONFIG, {}), []
    emitter.slots, emitter.memories = TableSlots(CONFIG.n), SimpleNamespace(tables=Ring(0, 48))
    emitter.constants = SimpleNamespace(tables={one.key: int(first) for one, first in zip(FUNCTIONS, firsts)})
    for number in sequence:
        begin = len(emitter.ops)
        MatrixEmitter.load_table(emitter, FUNCTIONS[number])
        new = [op.fields for op in emitter.ops[begin:] if op.opcode is Opcode.LOAD_TABLE]
        machine.regions[Region.MODEL] = model_of(encoded(emitter.ops[begin:], CONFIG), model, CONFIG)
        machine.run()
        assert (lookup(sums, machine.table) == lookup(sums, tables[number])).all()
        loaded.append(sum(fields["rows"] for fields in new))
    return loaded


@pytest.mark.parametrize(
    "sequence, vectors",
    [
        ([0, 0], [32, 0]),
        ([0, 1, 0], [32, 4, 4]),  # the inverse root displaces two binades of GELU
        ([1, 2, 3, 1, 2], [4, 2, 4, 0, 0]),  # side by side
        ([0, 1, 2, 0, 1], [32, 4, 2, 6, 4]),  # the reciprocal displaces GELU, which is the least recently used
        ([4, 1, 2, 4, 0, 1], [22, 4, 2, 0, 32, 4]),
    ],
)
def test_missing_binades(rng, sequence, vectors):
    """A load of a function transfers only its missing binades. Selecting a function that is already in the table transfers one
    vector. `vectors` counts binades of either sign."""
    sums = rng.integers(0, 1 << 32, 5000, dtype=np.uint32)
    sums &= np.where(sums & 0x7F800000, np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    sums = np.where(sums & 0x7F800000 == 0x7F800000, np.uint32(0x7FC00000), sums)
    selected = [before != number and binades == 0 for before, number, binades in zip([None, *sequence], sequence, vectors)]
    assert loads(sequence, sums) == [BINADE * binades + one for binades, one in zip(vectors, selected)]


def test_network_loads_each_table_once(rng):
    """Layers that alternate between two functions load both tables once. Each later selection loads one vector. The results
    match the golden model bit for bit."""
    weights = [random_values(rng, (8, 8)) for _ in range(4)]
    names = ["tanh", "leaky_relu", "tanh", "leaky_relu"]
    graph = dense_chain("alternating", [(f"d{i}", w, None, name) for i, (w, name) in enumerate(zip(weights, names))])
    program = check(graph, CONFIG, 2, rng)
    rows = [op.fields["rows"] for op in program.ops if op.opcode is Opcode.LOAD_TABLE]
    assert sum(rows) == BINADE * (2 * 11 + 2 * 2) + 2 and rows[-2:] == [1, 1]


@pytest.mark.parametrize(
    "n, depth, batch, widths", [(4, 256, 16, [128, 32, 64, 32, 32]), (8, 128, 4, [16, 32, 64, 128, 64, 128, 16, 32])]
)
def test_table_ahead_of_its_use_leaves_operands_alone(rng, n, depth, batch, widths):
    """A table that is loaded during earlier layers overwrites no operands, even if these fill the unified buffer."""
    weights = [random_values(rng, (k, m), k**-0.5) for k, m in zip(widths, widths[1:])]
    functions = ["relu"] * (len(weights) - 1) + ["tanh"]
    graph = dense_chain("late", [(f"d{i}", w, None, name) for i, (w, name) in enumerate(zip(weights, functions))])
    program = check(graph, Config(n=n, unified_buffer_depth=depth), batch, rng)
    first = next(index for index, op in enumerate(program.ops) if op.opcode is Opcode.LOAD_TABLE)
    assert any(op.fields.get("function") is FunctionCode.RELU for op in program.ops[first:])


def test_random_sequences(rng):
    sums = rng.integers(0, 1 << 32, 2000, dtype=np.uint32)
    sums = sums[(sums & 0x7F800000 != 0) & (sums & 0x7F800000 != 0x7F800000)]
    loads(rng.integers(0, len(FUNCTIONS), 30).tolist(), sums)
