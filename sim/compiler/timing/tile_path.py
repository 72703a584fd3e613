"""The path of tiles of weights in the timing model, from the bus to the weight FIFO."""

from collections import deque

from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.array.weight_decoder import WeightDecoder
from amaranth_tpu.hw.array.weight_unpacker import WeightUnpacker
from amaranth_tpu.hw.bus.burst_splitter import MAX_BURST
from amaranth_tpu.hw.bus.weight_credits import WeightCredits
from amaranth_tpu.hw.spec.codes import WeightFormat

__all__ = ["TilePath"]

_BUFFER = 2  # cycles through the buffer of the unpacker


class TilePath:
    """The tiles of LOAD_WEIGHTS, in the order of their requests."""

    def __init__(self, config):
        self.config = config
        self.formats = deque()  # `(format, tiles)` of the LOAD_WEIGHTS whose tiles are not all requested
        self.number = 0  # of the next tile in its LOAD_WEIGHTS
        self.ready = 0  # when the last tile has been decoded
        self.transposer = Transposer.latency + config.n - 1 if config.attention else 0
        self.cushion = min(WeightCredits.cushion, config.weight_fifo_depth * config.n // 2)
        self.low = min(config.weight_fifo_depth // 2, WeightUnpacker.cushion // config.tile_cycles)
        self._set_format(WeightFormat.BFLOAT16)

    def _set_format(self, format_):
        """Sets the format of the next tiles: the tiles of a burst, and the tiles that FIFO and buffer hold."""
        n = self.config.n
        self.format, size = format_, format_.vectors(n, 2) // 2
        self.a_burst = max(1, MAX_BURST // (size * self.config.beats_per_vector))
        self.depth = self.config.weight_fifo_depth + (WeightUnpacker.depth // size if self.config.weight_formats else 0)

    def begin(self, op):
        """Begins a LOAD_WEIGHTS."""
        if not self.config.weight_formats:
            return
        if not self.formats:
            self._set_format(WeightFormat(op.fields.get("weight_format", 0)))
        self.formats.append((WeightFormat(op.fields.get("weight_format", 0)), op.rows))

    @property
    def vectors(self):
        """Returns the number of vectors of the next tile, with a vector of scales before each two tiles."""
        return self.format.vectors(self.config.n, self.number + 1) - self.format.vectors(self.config.n, self.number)

    def pass_on(self, arrival):
        """Returns the time at which the next tile, whose last vector arrives at `arrival`, is in the weight FIFO."""
        config, coded = self.config, self.format is not WeightFormat.BFLOAT16
        if not config.weight_formats:
            return arrival + self.transposer
        if coded:
            cycles = config.tile_cycles + (self.number % 2 == 0) + (config.n // 8 if self.format is WeightFormat.MXFP6 else 0)
            self.ready = max(self.ready + cycles, arrival + _BUFFER + WeightDecoder.latency)
        else:
            self.ready = max(self.ready + config.n, arrival + _BUFFER + self.transposer)
        self.number += 1
        if self.number == self.formats[0][1]:
            self.formats.popleft()
            self.number = 0
            if self.formats:
                self._set_format(self.formats[0][0])
        return self.ready

    def is_urgent(self, held, arrivals, now):
        """Returns True if tiles have priority over loads: few vectors are requested, or stored where the credits count them.

        `held` tiles are requested and not used yet; `arrivals` has the times at which they are in the FIFO."""
        if not self.config.weight_formats:
            return held * self.config.n < self.cushion
        waiting = max(sum(arrival > now for arrival in arrivals), held - self.config.weight_fifo_depth)
        return waiting * self.vectors < WeightCredits.cushion and held - waiting < self.low
