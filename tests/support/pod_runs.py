"""Runs of cores in a ring, compared with machine models that execute the same programs."""

import functools

import numpy as np

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.isa import Opcode, Region, RingMode
from amaranth_tpu.sim.golden.isa_model import MachineFault
from amaranth_tpu.sim.golden.isa_ring import MachineRing
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import pod_verilog_of
from machine_programs import program
from seeds import seed

POD = Config(n=2, unified_buffer_depth=256, accumulator_depth=16, weight_fifo_depth=2, ring=True, ring_depth=8, **PLAIN)
_ROWS = POD.unified_buffer_depth
#: Offsets of the regions in bytes, equal for all cores.
_BASES = {"MODEL": 0, "INPUT": 0x1000, "OUTPUT": 0x2000, "SCRATCH": 0x3000}
_SIZE = 0x4000


@functools.cache
def _simulation(config, cores, link_latency):
    return Simulation(simulator="icarus", verilog=pod_verilog_of(config, cores, link_latency), top="tpu_pod")


def ring_program(rng, size, count):
    """Returns `count` random RINGs with loads and stores that depend on them, between a LOAD of all rows and a STORE of all
    rows."""
    vector = POD.vector_bytes
    words = [(Opcode.LOAD, dict(region=Region.INPUT, rows=_ROWS, buffer=0))]
    for _ in range(count):
        rounds, segment = int(rng.integers(1, 3)), int(rng.integers(1, POD.ring_depth + 1))
        while size * segment * rounds > 100:
            segment //= 2
        stride = segment * rounds + int(rng.integers(3))
        mode = RingMode(int(rng.integers(3)))
        buffer = int(rng.integers(20))
        result = 128 + int(rng.integers(20)) if mode is RingMode.ALL_GATHER or rng.random() < 0.5 else buffer
        words.append((Opcode.RING, dict(mode=mode, buffer=buffer, result=result, segment=segment, stride=stride, rounds=rounds)))
        rows, offset = int(rng.integers(1, 40)), int(rng.integers(200))
        other = (Opcode.STORE, Region.SCRATCH) if rng.random() < 0.5 else (Opcode.LOAD, Region.INPUT)
        words.append((other[0], dict(region=other[1], rows=rows, offset=offset * vector, buffer=int(rng.integers(200)))))
    return [*words, (Opcode.STORE, dict(region=Region.OUTPUT, rows=_ROWS, buffer=0)), (Opcode.HALT, {})]


def play_pod(rng, tmp_path, runs, *, pause=0, link_latency=0, recover=None, apart=False):
    """Runs programs on the simulated pod.

    Parameters
    ----------
    runs : list of lists of (words, dict)
        For each run, the program of every core, with further options of :mod:`sim.benches.bench_pod`.
    recover : list of str
        Recovery before each run, "reset" or "flush", as in the bench. Default: "flush".
    apart : bool
        True to give each run a separate OUTPUT and SCRATCH of 0x400 bytes.

    Returns
    -------
    results, before, after, regions
        The bench's reports by run and core; the memory of each core before and after; `(base, size)` of the regions by run.
    """
    size = len(runs[0])
    images = [bytearray(rng.normal(size=_SIZE // 4).astype(np.float32).tobytes()) for _ in range(size)]
    jobs, placed = [], []
    for number, cores in enumerate(runs):
        base = number * 0x400
        for rank, (words, _) in enumerate(cores):
            image = program(POD, *words)
            assert number < 4 and len(image) <= 0x400
            images[rank][base : base + len(image)] = image
        placed.append({name: [first, 0x1000] for name, first in _BASES.items()} | {"MODEL": [base, 0x400]})
        if apart:
            placed[-1] |= {name: [_BASES[name] + base, 0x400] for name in ("OUTPUT", "SCRATCH")}
        jobs.append([{"regions": placed[-1], **more} for _, more in cores])
    found, after = run_images(_simulation(POD, size, link_latency), tmp_path, images, jobs, pause=pause, recover=recover)
    return found, images, after, placed


def run_images(simulation, tmp_path, images, jobs, *, pause, recover=None, timeout=200):
    """Runs jobs on a pod, with a memory image for each core. Returns the reports, and the memories after the runs."""
    before, after = ([tmp_path / f"{what}{rank}" for rank in range(len(images))] for what in ("before", "after"))
    for path, image in zip(before, images):
        path.write_bytes(image)
    files = {"images": [*map(str, before)], "outputs": [*map(str, after)]}
    arguments = files | {"runs": jobs, "pause": pause, "recover": recover or ["flush"] * len(jobs)}
    bench = "amaranth_tpu.sim.benches.bench_pod"
    result = simulation.run(bench, timeout=timeout, seed=seed() & 0x7FFFFFFF, arguments=arguments)
    return result["runs"], [path.read_bytes() for path in after]


def run_pod(rng, tmp_path, runs, *, check=True, **options):
    """Runs :func:`play_pod`, and returns the reports. If `check` is True, all memory must match the machine models after the
    runs."""
    results, memories, after, placed = play_pod(rng, tmp_path, runs, **options)
    if check:
        for regions in placed:
            run_machines(memories, regions)
        for rank, (found, memory) in enumerate(zip(after, memories)):
            wrong = np.flatnonzero(np.frombuffer(found, np.uint8) != np.frombuffer(memory, np.uint8))
            assert not len(wrong), f"core {rank}: {len(wrong)} bytes differ, the first at {wrong[0]:#x}"
    return results


def run_machines(memories, regions):
    """Executes one run on machine models, starting from and writing to `memories`. Returns the fault of each core, or None."""
    places = {Region[name]: slice(base, base + size) for name, (base, size) in regions.items()}
    owns = [{region: bytearray(memory[place]) for region, place in places.items()} for memory in memories]
    ring = MachineRing(POD, owns)
    try:
        ring.run()
    except MachineFault:
        pass
    for memory, own in zip(memories, owns):
        for region in (Region.OUTPUT, Region.SCRATCH):
            memory[places[region]] = own[region]
    return ring.faults
