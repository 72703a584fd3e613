"""The memory of the host, for estimates, runs and options of commands. It imports nothing heavy, as options need it first."""

import re
from dataclasses import dataclass
from math import ceil

__all__ = ["DEFAULT_HOST", "HOST_LATENCY", "HostMemory", "MEMORY_NAMES", "parse_memory"]

#: Default latency of host memory in cycles, for estimates and runs.
HOST_LATENCY = 32

#: Memories by name: million bytes per second, latency with a controller in ns, and ns to close and open a row (precharge and
#: activate of the slowest grade in data sheets). Each burst counts as a row miss, so estimates are on the safe side.
_NAMED = {
    "ddr3-800x8": (800, 150, 27.5),
    "ddr3-800x16": (1600, 150, 27.5),
    "ddr3-1600x32": (6400, 120, 27.5),
    "sdram-90x16": (180, 180, 42),  # of the board ulx3s-85f, as measured
    "sdram-100x16": (200, 160, 42),
    "sdram-133x16": (266, 90, 36),
    "sdram-166x32": (664, 90, 36),
}
#: Cycles for 32 bits and latency of a bus without bursts, at any clock.
_SINGLE = {"wishbone32": (14.5, 20)}  # LiteX' bus with DDR3 behind it, as measured
MEMORY_NAMES = (*_NAMED, *_SINGLE)


@dataclass(frozen=True)
class HostMemory:
    """Host memory, in cycles of the core.

    Without `bytes_per_cycle`, the memory moves one bus beat per cycle in each direction. With it, reads and writes share this
    bandwidth, as on one DRAM, and each burst costs `burst_cycles` more.
    """

    latency: int = HOST_LATENCY  # cycles from the address of a read to its first beat
    bytes_per_cycle: float | None = None
    burst_cycles: float = 0.0

    def beat_cycles(self, config):
        """Returns the cycles for which a bus beat occupies a memory whose bandwidth is shared. Returns 0 for other memories."""
        return config.bus_bytes / self.bytes_per_cycle if self.bytes_per_cycle else 0

    def cycles(self, config, read, written=0):
        """Returns the least cycles for this number of bus beats in each direction."""
        return max(read, written, ceil((read + written) * self.beat_cycles(config)))

    def plusargs(self, config):
        """Returns the settings of `axi_memory` that simulate this memory."""
        if not self.bytes_per_cycle:
            return {"latency": self.latency}
        times = {"beat_time": self.beat_cycles(config), "burst_time": self.burst_cycles}
        return {"latency": self.latency} | {name: max(1, round(256 * cycles)) for name, cycles in times.items() if cycles}


DEFAULT_HOST = HostMemory()


def parse_memory(text):
    """Returns the :class:`HostMemory` that `text` describes: `LATENCY[:BYTES[:BURST]]` in cycles and bytes per cycle, or
    `NAME[@MHZ]` with a name of `MEMORY_NAMES` and the core's clock, 100 MHz by default. Raises ValueError."""
    name, at, clock = text.partition("@")
    clock, number = clock if at else "100", r"\d+(?:\.\d+)?"
    mhz = float(clock) if re.fullmatch(number, clock) else 0
    if mhz and name in _SINGLE:
        cycles, latency = _SINGLE[name]
        return HostMemory(latency, 4 / cycles)
    if mhz and name in _NAMED:
        rate, nanoseconds, row = _NAMED[name]
        return HostMemory(max(1, ceil(nanoseconds * mhz / 1000)), rate / mhz, row * mhz / 1000)
    if re.fullmatch(rf"\d+(?::{number}){{0,2}}", text):
        cycles, *rest = map(float, text.split(":"))
        if cycles and all(rest[:1]):
            return HostMemory(int(cycles), *rest)
    raise ValueError(
        f"{text!r} is not a memory: give LATENCY[:BYTES[:BURST]], such as 32 or 32:8:2 (cycles, bytes per cycle, cycles per "
        f"burst), or NAME[@MHZ] with a name of {', '.join(MEMORY_NAMES)} and the core's clock"
    )
