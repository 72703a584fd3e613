"""Tests of simulations with a host image: the size of the memory, and a ring."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.host import host_image
from amaranth_tpu.sim.ir.optimizers import Sgd
from graph_steps import dense_network, inputs_of, kept_of


@pytest.mark.parametrize("simulator, least", [("icarus", 1 << 20), ("verilator", 1 << 24)])
@pytest.mark.parametrize("cores", [1, 2])
def test_memory_has_a_least_size_and_room_for_the_program(monkeypatch, simulator, least, cores):
    """Programs of different sizes share builds, above all of Verilator. Icarus sets each word to zero before a run, so its memory
    stays small."""
    monkeypatch.setattr(host_image, "verilog_of", lambda config: "")
    for needed, expected in ((1, least), (least, least), (least + 1, 2 * least), (5 << 24, 8 << 24)):
        simulation = host_image.core_simulation(Config(), simulator=simulator, memory_bytes=needed, cores=cores)
        assert simulation.parameters["MEMORY_BYTES"] == expected


@pytest.mark.slow  # test_rtl_of_two_cores compares the states after a step on the same images
def test_a_ring_on_the_rtl(rng):
    """The RTL of both cores writes the bytes of the instruction-level model."""
    optimizer = Sgd()
    step = make_step(dense_network(rng, (3, 2)), optimizer, 2, sharded=False)
    program = compile_graph(step, Config(n=2, training=True, ring=True, table_lanes=1), 1, 2)
    packed = [program.pack(Region.INPUT, inputs_of(step, 1, rng)) for _ in range(2)]
    kept = [program.pack(Region.SCRATCH, kept_of(step, rng))] * 2
    run = program.with_factors(optimizer.factors(0.1, 2, 1)), packed
    host = host_image.HostImage(program, [run], kept)
    raw = host.simulate(simulator="icarus", timeout=300, quick=True)
    outputs, fault = host.execute()
    assert raw["fault"] is fault is None
    assert [bytes(one) for one in raw["output"]] == [bytes(one) for one in outputs]
