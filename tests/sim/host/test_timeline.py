"""Tests that the timeline of a run is equal in both simulators, and that after a fault unfinished instructions have no end."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.host.inference import InferenceImage, run_samples
from amaranth_tpu.sim.host.timeline import timeline
from amaranth_tpu.sim.rtl.core_probes import core_probes
from amaranth_tpu.sim.rtl.runner import Simulators
from onnx_models import Builder, weights

CONFIG = Config(n=2, unified_buffer_depth=64, accumulator_depth=16, bias_depth=4, **PLAIN)


@pytest.fixture
def job(rng, tmp_path):
    """Returns `(network, program, samples)` of a dense layer with 5 inputs and a batch of 4."""
    build = Builder(["batch", 5])
    build("Gemm", weights(rng, 5, 3), np.zeros(3, np.float32))
    network = load_network(build.save(tmp_path))
    return network, compile_network(network, CONFIG, 4), rng.normal(size=(4, 5)).astype(np.float32)


@pytest.mark.slow
def test_simulators_see_the_same(job):
    network, program, samples = job
    options = {"program": program, "probes": core_probes(CONFIG), "quick": True}
    found = [run_samples(network, CONFIG, samples, simulator=name, **options) for name in Simulators]
    runs = [timeline(result.seen, program) for result in found]
    assert len(runs[0]) == 1 and runs[0] == runs[1]


@pytest.mark.slow
def test_fault(job):
    network, program, samples = job
    first, _ = InferenceImage(program, samples.astype(bfloat16)).outputs
    bad = {"error_address": f"{first:x}", "error_last": f"{first + 4095:x}"}
    result = run_samples(network, CONFIG, samples, program=program, simulator="icarus", memory=bad, probes=core_probes(CONFIG))
    assert result.fault["cause"] == "BUS_WRITE"

    [run], [counters] = timeline(result.seen, program), result.batches
    assert run.end - run.begin == counters["cycles"]
    states = {name: 0 for name in ("busy", *result.stalls)}
    for name, begin, end in run.states:
        states[name] += end - begin
    assert states == {"busy": counters["busy"], **result.stalls} and states["drain"] > 0
    assert sum(last + 1 - first for one in run.instructions for first, last in one.passes) == counters["busy"]
    assert sum(end - begin for _, begin, end in run.writes) == counters["write_beats"] > 0

    assert [one.opcode for one in run.instructions] == [*(op.opcode for op in program.ops), Opcode.HALT]
    stores = [one for one in run.instructions if one.opcode is Opcode.STORE]
    assert stores[0].pc == result.fault["pc"] and run.instructions[-1].placed is None
    for one in run.instructions[:-1]:
        moments = [one.decoded, one.offered, one.placed, one.begun, one.ended]
        known = [moment for moment in moments if moment is not None]
        assert known == sorted(known) and run.begin <= known[0] and known[-1] <= run.end
        assert one.opcode is Opcode.STORE or None not in moments
