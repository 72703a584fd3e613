"""Tests of the smallest cores: a refusal names a memory and a depth, larger depths lead to a program, and its bits are right."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.image import program_of
from amaranth_tpu.sim.compiler.program import Cost
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from graphs import check, random_graph
from trainable_graphs import random_trainable_graph
from training_steps import run_steps

_REMEDY = re.compile(r"[\w ,.]+: (\w+) = (\d+): its smallest tile takes (\d+); choose a larger --([\w-]+)")


def _smallest(compile_for, rng):
    """Returns a small core for which `compile_for` returns a program, and the program. Follows the remedy of each refusal."""
    n = int(rng.choice([2, 4]))
    core = Config(n=n, unified_buffer_depth=2 * n, accumulator_depth=n, bias_depth=2, training=True, ring=True)
    for _ in range(12):
        try:
            return core, compile_for(core)
        except CompileError as error:
            name, depth, needed, option = _REMEDY.fullmatch(str(error)).groups()
            assert getattr(core, name) == int(depth) < int(needed) and option == name.replace("_", "-")
            core = replace(core, **{name: 1 << (int(needed) - 1).bit_length()})
    raise AssertionError(f"{core} is too small after 12 remedies")


@pytest.mark.parametrize("number", range(2))
def test_networks_on_the_smallest_core(rng, number):
    graph = random_graph(rng, channels=7, size=6)
    core, _ = _smallest(lambda core: compile_network(graph, core, 3), rng)
    check(graph, core, 3, rng)


@pytest.mark.parametrize("cores, sharded", [(1, True), (2, True), (3, False)])
def test_steps_on_the_smallest_core(rng, cores, sharded):
    training = with_parameters(random_trainable_graph(rng, stages=int(rng.integers(0, 3)), channels=7, size=6))
    optimizer = Sgd(0.9) if rng.random() < 0.5 else Adam()
    _, program = _smallest(lambda core: compile_step(training, optimizer, core, 2, None, cores, sharded), rng)
    run_steps(program, training, optimizer, rng)


@pytest.mark.parametrize("region", [Region.INPUT, Region.OUTPUT, Region.SCRATCH])
def test_regions_that_offsets_do_not_reach(region):
    """A region has less than 4 GiB, because instructions have offsets of 32 bits."""
    core, facts = Config(n=4), {"batch": 1, "useful_macs": 0, "tensors": {}, "memory": None, "emit": tuple}
    vectors = (1 << 32) // core.vector_bytes

    def made(size):
        own = {Region.INPUT: 1, Region.OUTPUT: 1, Region.SCRATCH: 1, region: size}
        code = SimpleNamespace(
            words=b"", image=(), blocks=(), cost=Cost(0, 0, 0, 0, 0), plans=(), scratch=own.pop(Region.SCRATCH)
        )
        constants = SimpleNamespace(lowered=SimpleNamespace(sizes=own), pack=lambda *_: b"")
        return program_of(code, constants, core, **facts)

    assert made(vectors - 1).sizes[region] == (1 << 32) - core.vector_bytes
    with pytest.raises(CompileError, match=f"region {region.name} needs 4294967296 bytes.*use a smaller batch"):
        made(vectors)
