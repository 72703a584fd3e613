# amaranth: UnusedElaboratable=no
"""Tests that blocks refuse sizes that they do not support, with an error that names the value."""

import re

import pytest

from amaranth_tpu.hw.array.accumulators import Accumulators
from amaranth_tpu.hw.array.unified_buffer import UnifiedBuffer
from amaranth_tpu.hw.array.weight_fifo import WeightFifo
from amaranth_tpu.hw.bus.axi_reader import AxiReader
from amaranth_tpu.hw.bus.burst_splitter import BurstSplitter
from amaranth_tpu.hw.control.operation_queue import OperationQueue
from amaranth_tpu.hw.lib.short_fifo import ShortFifo

BUS = {"address_width": 32, "data_width": 64}
SPLITTER = {"address_width": 32, "beats_width": 8}


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Accumulators(n=4, depth=16, bias_depth=4, latency=4), "latency must be 2 or 3, not 4"),
        (lambda: UnifiedBuffer(n=4, depth=16, skew=0), "skew must be at least 1, not 0"),
        (lambda: WeightFifo(n=4, tiles=6, skew=1), "tiles must be a power of two, at least 2, not 6"),
        (lambda: WeightFifo(n=4, tiles=1, skew=1), "tiles must be a power of two, at least 2, not 1"),
        (lambda: OperationQueue(slot=2, depth=3), "depth must be a power of two, at least 2, not 3"),
        (lambda: ShortFifo(shape=2, depth=1), "depth must be a power of two, at least 2, not 1"),
        (lambda: AxiReader(**BUS, outstanding=12), "outstanding must be a power of two, at least 2, not 12"),
        (lambda: AxiReader(**BUS, load_limit=31), "load_limit must be at least 32, not 31"),
        (lambda: BurstSplitter(**SPLITTER, bus_bytes=256), "bus_bytes must be a power of two, from 1 to 128, not 256"),
        (lambda: BurstSplitter(**SPLITTER, bus_bytes=8.0), "bus_bytes must be a power of two, from 1 to 128, not 8.0"),
        (lambda: BurstSplitter(**SPLITTER, bus_bytes=8, longest=32), "longest must be a power of two, from 1 to 16, not 32"),
    ],
)
def test_refused(make, said):
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        make()
