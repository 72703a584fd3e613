"""Tests that programs compiled from step graphs compute the reference model's bits on the cores of a ring."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, RingMode
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from graph_steps import dense_network, run_on_model
from step_networks import transformer
from suites import slow


def _compiled(network, optimizer, batch, cores, *, counted=False, sharded=False, **config):
    step = make_step(network, optimizer, cores, counted=counted, sharded=sharded)
    return compile_graph(step, Config(**{"n": 4, "training": True, "ring": True, **config}), batch, cores)


def test_small_memories(rng):
    """Segments that do not fit the unified buffer are exchanged piece by piece."""
    program = _compiled(dense_network(rng, (5, 33, 3)), Sgd(), 2, 3, unified_buffer_depth=64)
    assert max(op.fields["segment"] for op in program.ops if op.opcode is Opcode.RING) < 2 * 33 // 3
    run_on_model(program, Sgd(), rng, steps=1)


#: Positions, channels, heads, letters, blocks, LayerNorm (False: RMSNorm), batch per core, n, cores, optimizer.
TRANSFORMERS = [
    (2, 5, 1, 2, 1, True, 1, 4, 2, Sgd()),
    *slow(
        (3, 5, 1, 3, 1, True, 1, 4, 2, Sgd()),
        (3, 4, 1, 3, 1, True, 1, 4, 3, Adam()),
        (5, 9, 1, 6, 1, False, 2, 4, 3, Sgd()),
        (6, 16, 2, 7, 1, True, 1, 4, 8, Sgd()),
        (5, 9, 1, 6, 2, False, 2, 8, 2, Adam(weight_decay=0.01)),
        (7, 12, 3, 9, 2, True, 2, 4, 5, Sgd(0.9, 0.01)),
    ),
]


@pytest.mark.parametrize("tokens, width, heads, letters, blocks, centred, batch, n, cores, optimizer", TRANSFORMERS)
def test_transformers(rng, tokens, width, heads, letters, blocks, centred, batch, n, cores, optimizer):
    network = transformer(rng, tokens, width, heads, letters, blocks, centred)
    run_on_model(_compiled(network, optimizer, batch, cores, n=n, counted=True), optimizer, rng, steps=1)


def test_words(rng):
    """Each core sends 2 N (P - 1) / P words. N counts a bias once per core, because it is in one segment."""
    program = _compiled(dense_network(rng, (8, 12)), Sgd(), 1, 3)
    assert {op.fields["mode"] for op in program.ops if op.opcode is Opcode.RING} == {RingMode.ALL_REDUCE}
    assert program.ring_words == 2 * (8 * 12 + 3 * 12) * 2 // 3
