"""Tests that programs compiled from step graphs compute the reference model's bits on the RTL."""

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.host.host_image import HostImage
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from graph_steps import differing, inputs_of, kept_of, wanted
from step_networks import transformer


def run_on_rtl(program, optimizer, rng, simulator="verilator", **build):
    """Runs one step on the RTL. Asserts that no bit differs from the reference model. Returns the cycles."""
    step, factors = program.memory.given, optimizer.factors(0.1, program.batch, 1)
    kept, inputs = kept_of(step, rng), inputs_of(step, program.batch, rng)
    run = program.with_factors(factors), [program.pack(Region.INPUT, inputs)]
    host = HostImage(program, [run], [program.pack(Region.SCRATCH, kept)])
    raw = host.simulate(simulator=simulator, timeout=900, **build)
    assert raw["fault"] is None and raw["protocol_errors"] == 0

    def found(name):
        return program.unpack(*host.read(raw["output"], "OUTPUT" if name == step.output else "SCRATCH"), name)

    assert not differing(step, found, wanted(step, inputs, kept, factors))
    return raw["batches"][0]["cycles"]


#: Positions, channels, heads, letters, blocks, LayerNorm (False: RMSNorm), batch, optimizer.
@pytest.mark.slow
@pytest.mark.parametrize(
    "tokens, width, heads, letters, blocks, centred, batch, optimizer",
    [(3, 5, 1, 3, 1, True, 2, Sgd()), (5, 9, 1, 6, 2, False, 2, Sgd()), (6, 8, 2, 7, 1, True, 3, Adam())],
)
def test_transformers(rng, tokens, width, heads, letters, blocks, centred, batch, optimizer):
    network = transformer(rng, tokens, width, heads, letters, blocks, centred)
    network.normalize = isinstance(optimizer, Adam)
    step = make_step(network, optimizer, counted=True)
    program = compile_graph(step, from_preset("training", n=4, softmax_lanes=2, normalize=network.normalize), batch)
    cycles = run_on_rtl(program, optimizer, rng, quick=True)
    assert abs(cycles - program.predicted_cycles) < 0.05 * cycles
