"""The time of a host memory whose bandwidth reads and writes share."""

from math import ceil

__all__ = ["SharedMemory"]


class SharedMemory:
    """A :class:`.HostMemory` of shared bandwidth, which moves one beat at a time, and pauses before each burst."""

    def __init__(self, host, config):
        self._beat, self._burst, self._free = host.beat_cycles(config), host.burst_cycles, 0.0

    def occupy(self, now, beats, bursts):
        """Reserves the memory from cycle `now` on. Returns the first cycle in which all beats are moved."""
        self._free = max(self._free + bursts * self._burst, now) + beats * self._beat
        return ceil(self._free)
