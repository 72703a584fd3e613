"""Tests of pods of cores with all features and several n, on random programs that have many hazards and contain RINGs."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.isa_ring import MachineRing
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import pod_verilog_of
from amaranth_tpu.sim.verification.programs import Hazards
from core_programs import Case, with_known_table
from core_runs import FULL, TINY, image_of
from pod_runs import run_images
from suites import slow

#: Bytes of region MODEL for each program.
_MODEL = 0x2000


def check_pod(rng, tmp_path, config, size, *, programs, length, pause=0.0, link_latency=0):
    """Runs the same random programs on all cores with different data, and compares them with machine models that start from the
    same function table."""
    verilog, ring = pod_verilog_of(config, size, link_latency), MachineRing(config, [{}] * size)
    if config.table_lanes:
        tabled = [with_known_table(verilog, machine) for machine in ring.machines]
        verilog = tabled[0]
    hazards = Hazards(rng, config, known_table=True)
    total = _MODEL + sum(Case.sizes.values())
    images, jobs = [b""] * size, []
    expected = [b""] * size
    for number in range(programs):
        model = image_of(config, hazards.make(length, size))
        assert len(model) <= _MODEL
        model, base, places = model.ljust(_MODEL, b"\0"), number * total, {}
        for name, count in {"MODEL": _MODEL, **Case.sizes}.items():
            places[name] = [base, count]
            base += count
        for rank, machine in enumerate(ring.machines):
            data = (rng.normal(size=(total - _MODEL) // 2) / 4).astype(bfloat16).tobytes()
            own = model + data
            images[rank] += own
            start = places["MODEL"][0]
            machine.regions = {
                Region[name]: bytearray(own[first - start : first - start + count]) for name, (first, count) in places.items()
            }
        ring.run()
        for rank, machine in enumerate(ring.machines):
            expected[rank] += b"".join(machine.regions[Region[name]] for name in places)
        jobs.append([{"regions": places, "delay": int(rng.integers(100)), "timeout": 20_000} for _ in range(size)])
    simulation = Simulation(simulator="icarus", verilog=verilog, top="tpu_pod")
    runs, after = run_images(simulation, tmp_path, images, jobs, pause=pause, timeout=550)
    for number, cores in enumerate(runs):
        assert [core["fault"] for core in cores] == [None] * size, f"program {number}"
    assert any(core["ring_sent"] for cores in runs for core in cores)
    for rank, memory in enumerate(after):
        wrong = np.flatnonzero(np.frombuffer(memory, np.uint8) != np.frombuffer(expected[rank], np.uint8))
        assert not len(wrong), f"core {rank}: {len(wrong)} bytes differ, the first at {wrong[0]:#x}"


# promise: ring-bits
@pytest.mark.parametrize(
    "sizes, cores, pause, link_latency",
    slow(
        (dict(n=4, weight_rows=2), 3, 0.2, 1),
        (dict(n=2, bus_width=32, cell_stages=2), 4, 0, 0),
        (dict(n=8, cell_stages=8, ring_depth=8), 2, 0.1, 3),
    ),
    ids=str,
)
def test_all_features(rng, tmp_path, sizes, cores, pause, link_latency):
    features = dict(pooling=True, table_lanes=2, softmax=True, attention=True, training=True, transpose=True, bias_depth=16)
    config = Config(**{**TINY, **features, "ring": True, "ring_depth": 4, **sizes})
    assert sizes != dict(n=4, weight_rows=2) or config == FULL
    check_pod(rng, tmp_path, config, cores, programs=3, length=60, pause=pause, link_latency=link_latency)


@pytest.mark.parametrize("cores", slow(2))
def test_no_features(rng, tmp_path, cores):
    check_pod(rng, tmp_path, Config(**TINY, ring=True, ring_depth=4), cores, programs=4, length=60)
