"""Tests that training steps on the cores of a ring match the golden model bit for bit on every core's instruction-level model."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, RingMode
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.compiler.step_state import with_rate
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from training_steps import chain, run_steps


def check(graph, rng, cores, *, n=4, batch=3, optimizer=None, dropout=None, sharded=True, steps=2, **config):
    training, optimizer = with_parameters(graph), optimizer or Sgd(0.75)
    core = Config(n=n, training=True, ring=True, **config)
    program = compile_step(training, optimizer, core, batch, dropout, cores, sharded)
    run_steps(program, training, optimizer, rng, steps, dropout=dropout)
    return program


@pytest.mark.parametrize("cores", [5, 8])
def test_segments_without_outputs(rng, cores):
    check(chain(rng, (9, cores + 1, 2)), rng, cores)


@pytest.mark.parametrize("cores", [2, 3])
@pytest.mark.parametrize(
    "optimizer", [Sgd(0.5), Sgd(0.9, 0.01), Adam(weight_decay=0.01, clip_value=0.01)], ids=["sgd", "decay", "adam"]
)
def test_sharded_and_unsharded_updates(rng, cores, optimizer):
    """Steps with sharded weights (reduce-scatter, all-gather) and without shards (all-reduce) match the golden model bit for bit.
    Outputs are not a multiple of the cores, and segments exceed `ring_depth`."""
    graph = chain(rng, (9, 13, 4))
    programs = [check(graph, rng, cores, optimizer=optimizer, sharded=sharded, ring_depth=4) for sharded in (True, False)]
    modes = [{op.fields["mode"] for op in one.ops if op.opcode is Opcode.RING} for one in programs]
    assert modes == [{*RingMode}, {RingMode.ALL_REDUCE}]


@pytest.mark.parametrize("optimizer", [Sgd(0.9, 0.01), Adam()], ids=["sgd", "adam"])
def test_few_bias_rows_limit_the_columns_of_an_update(rng, optimizer):
    """The cores exchange a gradient in jobs whose updates fit the bias memory, if the accumulators have room for more."""
    check(chain(rng, (19, 16, 20)), rng, 2, optimizer=optimizer, batch=2, bias_depth=32, accumulator_depth=128, steps=1)


@pytest.mark.search
def test_updates_of_few_bias_rows_share_an_exchange(rng):
    """The jobs of an update have as many column tiles as fit the bias memory once: half as many take 24,521 cycles."""
    core = Config(n=2, training=True, ring=True, accumulator_depth=256, bias_depth=32)
    program = compile_step(with_parameters(chain(rng, (20, 44, 11))), Sgd(0.9), core, 2, cores=3)
    assert program.predicted_cycles <= 13_500


@pytest.mark.search
def test_cycles_and_words_of_a_ring_step(rng):
    """A step of 784-128-10 with n = 8, latency 32 and 8 x 16 samples takes at most 115,000 cycles. Each core sends gradients and
    upper halves once, and biases twice."""
    program = compile_step(
        with_parameters(chain(rng, (784, 128, 10))), Sgd(), Config(n=8, training=True, ring=True, in_flight=16), 16, cores=8
    )
    assert program.predicted_cycles <= 115_000
    numbers = 784 * 128 + 128 * 16  # outputs of the last layer are a multiple of 8
    biases = 8 * (128 + 16)  # one segment of eight has them
    assert program.ring_words == (numbers + numbers // 2 + 2 * biases) * 7 // 8


@pytest.mark.slow
@pytest.mark.search
def test_speed_up(rng):
    """Eight cores with 64 samples each are at least seven times as fast as one core with all 512 samples."""
    training, config = with_parameters(chain(rng, (784, 128, 10))), Config(n=8, training=True, ring=True)
    eight, one = (compile_step(training, Sgd(), config, 512 // cores, cores=cores).predicted_cycles for cores in (8, 1))
    assert one >= 7 * eight


def test_the_rate_is_that_of_the_whole_batch(rng):
    training = with_parameters(chain(rng, (9, 11, 5)))
    programs = [
        compile_step(training, Sgd(), Config(n=4, training=True, ring=True), 12 // cores, cores=cores) for cores in (1, 3)
    ]
    tiles = [
        np.frombuffer(with_rate(one, 0.1), np.uint16)[-4 * 4 :] for one in programs
    ]  # the optimizer's come last, the rate's behind all others
    assert np.array_equal(*tiles) and tiles[0].any()


def test_refusals(rng):
    with pytest.raises(CompileError, match="^2 cores need the ring[^\n]*$"):
        compile_step(with_parameters(chain(rng, (9, 11, 5))), Sgd(), Config(n=4, training=True), 6, cores=2)
