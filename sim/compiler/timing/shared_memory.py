"""The time of a host memory whose bandwidth reads and writes share."""

from math import ceil

__all__ = ["SharedMemory", "shared_memory"]


class SharedMemory:
    """A memory that moves one beat at a time, for `beat` cycles, and pauses for `burst` cycles before each burst."""

    def __init__(self, beat, burst):
        self._beat, self._burst = beat, burst
        self._free = 0.0

    def occupy(self, now, beats, bursts):
        """Reserves the memory from cycle `now` on. Returns the first cycle in which all beats are moved."""
        self._free = max(self._free + bursts * self._burst, now) + beats * self._beat
        return ceil(self._free)


def shared_memory(host, config):
    """Returns the :class:`SharedMemory` of a :class:`.HostMemory`. Returns None if its bandwidth is not shared."""
    beat = host.beat_cycles(config)
    return SharedMemory(beat, host.burst_cycles) if beat else None
