"""Tests of the compiler's parts: limits of simulations, accesses of instructions, and memory images."""

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.compiler.codegen.instructions import accesses
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.ir.graph import dense_chain
from graphs import random_values


def _chain(rng, *widths):
    return dense_chain(
        "g",
        [(f"layer{index}", random_values(rng, sizes, 0.1), None, "none") for index, sizes in enumerate(zip(widths, widths[1:]))],
    )


def test_a_simulation_ends_at_its_limit(rng):
    program = compile_network(_chain(rng, 50, 20), Config(n=4), 6)
    cycles = program.predicted_cycles
    assert simulate(program.ops, program.config, limit=cycles) is None
    assert simulate(program.ops, program.config, limit=cycles + 1).cycles == cycles


def test_accesses_are_the_spans_of_the_record():
    product = {"rows": 3, "lanes": 4, "buffer": 10, "acc": 5, "operand": 40}
    assert set(accesses(Opcode.MULTIPLY, product, 8)) == {("buffer", 10, 33, True), ("acc", 5, 3, False)}  # and rows between
    store = {"region": Region.SCRATCH, "offset": 48, "rows": 2, "buffer": 7}
    assert set(accesses(Opcode.STORE, store, 8)) == {("buffer", 7, 2, False), (Region.SCRATCH, 6, 2, True)}
    assert set(accesses(Opcode.LOAD, store, 8)) == {("buffer", 7, 2, True), (Region.SCRATCH, 6, 2, False)}
    store["region"] = Region.OUTPUT
    assert set(accesses(Opcode.STORE, store, 8)) == {("buffer", 7, 2, False), (Region.OUTPUT, 6, 2, True)}
    store["region"] = Region.INPUT
    assert set(accesses(Opcode.LOAD, store, 8)) == {("buffer", 7, 2, True)}


def test_weights_are_at_the_loaded_offsets(rng):
    """Each tile's bytes are at the image offset of its LOAD_WEIGHTS, padded with -0 outside the matrix."""
    config, weights = Config(n=4), random_values(rng, (11, 6))
    program = compile_network(dense_chain("g", [("only", weights, None, "none")]), config, 3)
    padded = np.full((12, 8), 0x8000, "<u2")
    padded[:11, :6] = weights.view("<u2")
    step, found = config.instruction_bytes, set()
    for number, op in enumerate(program.ops):
        if op.opcode is Opcode.LOAD_WEIGHTS:
            word = int.from_bytes(program.model[number * step : (number + 1) * step], "little")
            offset = next(
                offset
                for offset in range(0, len(program.model), 32)
                if encode(op.opcode, **op.fields | {"offset": offset}) == word
            )
            found |= {program.model[offset + 32 * tile :][:32] for tile in range(op.rows)}
    assert found == {padded[k : k + 4, c : c + 4].T.tobytes() for k in range(0, 12, 4) for c in (0, 4)}
