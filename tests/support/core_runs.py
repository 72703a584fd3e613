"""Configurations, memory images and runs of the whole core, shared by its tests."""

import tempfile
from pathlib import Path

import numpy as np

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.tools.process import build_directory
from amaranth_tpu.sim.rtl.memory_images import read_dump, write_image
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from seeds import seed

#: Small buffers, so that instructions often access the same rows.
TINY = dict(n=4, unified_buffer_depth=32, accumulator_depth=16, bias_depth=4, weight_fifo_depth=8, **PLAIN)
SMALL = Config(**TINY)
#: A core with every optional feature, SOFTMAX on several lanes. Lint uses it too.
FULL = Config(
    **TINY
    | {"pooling": True, "table_lanes": 2, "softmax": True, "softmax_lanes": 4, "normalize": True, "attention": True}
    | {"training": True, "update_lanes": 2, "transpose": True, "bias_depth": 16, "ring": True, "ring_depth": 4}
    | {"axi_cache": 15, "axi_prot": 2, "axi_id_width": 4}
    | {"weight_rows": 2}
)
SIZES = [
    dict(cell_stages=1, in_flight=4),
    dict(cell_stages=8, bus_width=32),
    dict(weight_fifo_depth=2, in_flight=32, cell_stages=5),
    dict(n=2, bus_width=32, weight_fifo_depth=4, cell_stages=2, address_width=40),
    dict(n=8, weight_fifo_depth=2, weight_rows=2, weight_formats=True),
    dict(pooling=True, cell_stages=5),
    dict(n=8, table_lanes=1),
    dict(attention=True, bias_depth=8),
    dict(n=2, pooling=True, table_lanes=2, bus_width=32),
    dict(n=8, softmax=True, softmax_lanes=4, normalize=True, cell_stages=8),
    dict(n=2, softmax=True, pooling=True, bus_width=32),
    dict(n=2, softmax=True, pooling=True, attention=True, training=True, bias_depth=16, weight_fifo_depth=2),
    dict(softmax=True, softmax_lanes=4, pooling=True, attention=True, training=True)
    | dict(bias_depth=8, cell_stages=8, bus_width=32, in_flight=4),
]
#: The core of the fast suite: the smallest array, with bus and queues different from `SMALL` and `FULL`.
MIXED = dict(n=2, bus_width=32, weight_fifo_depth=4, cell_stages=2, address_width=40, pooling=True, table_lanes=2)
#: Each value of the fields above occurs at least once, in half as many cores.
FEW_SIZES = [
    dict(cell_stages=1, in_flight=4),
    dict(cell_stages=8, bus_width=32, pooling=True),
    dict(weight_fifo_depth=2, in_flight=32, cell_stages=5, softmax=True, softmax_lanes=2, attention=True, bias_depth=8),
    MIXED,
    dict(n=8, weight_fifo_depth=2, table_lanes=1, weight_rows=2, weight_formats=True),
]
#: The smallest array and queues, which simulate fastest.
NARROW = dict(n=2, bus_width=32, weight_fifo_depth=2, in_flight=4)
SMALLEST = dict(unified_buffer_depth=16, accumulator_depth=4, bias_depth=2, weight_fifo_depth=2)
MEMORY = 1 << 21  # the same for most tests, because the build depends on the size
BAD = MEMORY - 0x1000  # first address at which the memory responds with errors
SLOW, PAUSED = {"latency": 200}, {"latency": 7, "pause_percent": 40}


class MemoryBuilder:
    """Host memory under construction. It is full of random bytes, so that a stray write is detected."""

    def __init__(self, rng, size=MEMORY):
        self.bytes, self.end = bytearray(rng.bytes(size)), 64

    def place(self, data, gap=64):
        """Copies `data` to unused memory at a multiple of 256 bytes. Returns `[base, size]`."""
        base = -(-self.end // 256) * 256
        self.end = base + len(data) + gap
        assert self.end <= len(self.bytes), "the host memory of the test is too small"
        self.bytes[base : base + len(data)] = data
        return [base, len(data)]


def usual_simulator(config, verilog=None):
    """Returns Verilator for configurations that many tests share. Returns Icarus Verilog for other configurations, because its
    builds take no time."""
    return "verilator" if config in (SMALL, FULL) and verilog is None else "icarus"


def run(config, host, runs, *, simulator=None, memory=None, verilog=None, timeout=900, bench="bench_core"):
    """Runs programs on the core one after the other, in `simulator` (default: :func:`usual_simulator`). The result's `memory` is
    the memory afterwards."""
    simulator = simulator or usual_simulator(config, verilog)
    simulation = Simulation.of_core(
        verilog or verilog_of(config), config, simulator=simulator, memory_bytes=len(host.bytes), quick=len(host.bytes) <= MEMORY
    )
    place = build_directory() / "runs"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="core-", dir=place) as name:
        folder, beat = Path(name), config.bus_bytes
        write_image(folder / "memory.hex", host.bytes, beat)
        result = simulation.run(
            f"amaranth_tpu.sim.benches.{bench}",
            timeout=timeout,
            seed=seed() & 0x7FFFFFFF,
            plusargs={
                "memory": folder / "memory.hex",
                "dump": folder / "dump.hex",
                "pause_seed": seed() & 0xFFFFFF,
                **(memory or {}),
            },
            arguments={"runs": runs, "window": [0, len(host.bytes) // beat - 1]},
        )
        lines = (folder / "dump.hex").read_text().splitlines()
        assert not any("x" in line.lower() for line in lines if not line.startswith("//")), "unknown bits were written"
        result["memory"] = read_dump(folder / "dump.hex", beat)
    assert result["protocol_errors"] == 0
    return result


def same(expected, found):
    expected, found = np.frombuffer(bytes(expected), np.uint8), np.frombuffer(bytes(found), np.uint8)
    wrong = np.flatnonzero(expected != found)
    assert not len(wrong), f"{len(wrong)} bytes of memory differ, the first at {wrong[0]:#x}, the last at {wrong[-1]:#x}"


def words_of(program):
    return [word if isinstance(word, int) else encode(word[0], **word[1]) for word in program]


def image_of(config, program):
    return b"".join(word.to_bytes(config.instruction_bytes, "little") for word in words_of(program))


def op(opcode, **fields):
    return opcode, fields
