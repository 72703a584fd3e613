# amaranth: UnusedElaboratable=no
"""Tests of the path of biases from the read unit to the accumulators, with random loads of whole rows and of halves."""

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_tpu.hw.array.accumulators import Accumulators
from amaranth_tpu.hw.array.bias_port import BiasPort
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Half
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.ports import simulate
from seeds import seed


class BiasPath(wiring.Component):
    """A bias port with accumulators whose sums start from biases, so that the written biases appear at output `top`."""

    def __init__(self, *, n, depth, halves):
        transfer = transfer_layout(Config(n=n, training=halves))
        self.port = BiasPort(n=n, bias_depth=depth, transfer=transfer)
        self.accumulators = Accumulators(n=n, depth=4, bias_depth=depth, latency=2, bias_halves=halves)
        bias_row = self.accumulators.passes.bias_row.shape()
        super().__init__({"load": In(self.port.load.signature.flip()), "bias_row": In(bias_row), "top": Out(32 * n)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.port, m.submodules.accumulators = port, accumulators = self.port, self.accumulators
        wiring.connect(m, wiring.flipped(self.load), port.load)
        wiring.connect(m, port.biases, accumulators.biases)
        passes = accumulators.passes
        m.d.comb += [passes.bias_row.eq(self.bias_row), passes.start.eq(1), self.top.eq(accumulators.edge.top)]
        return m


async def loads(ports, rng, *, n, depth, halves, count):
    """Loads `count` random ranges of bias rows with random pauses, then reads every row and compares it with a list."""
    rows = [[0] * n for _ in range(depth)]
    for index in range(count):
        half = rng.choice(list(Half)) if index and halves else Half.WHOLE
        first = rng.randrange(depth) if index else 0
        last = rng.randrange(first, depth) + 1 if index else depth
        pauses = rng.choice((0, 0, 0.4))
        for row in range(first, last):
            words = [rng.getrandbits(16) for _ in range(2 * n if half is Half.WHOLE else n)]
            for beat in range(len(words) // n):
                ports.set(load__row=2 * row + beat, **({"load__half": half.value} if halves else {}))
                while rng.random() < pauses:
                    rest = rng.choice(({"load__write": 0}, {"load__bias": 0}))  # a vector that is for the unified buffer
                    ports.set(**({"load__write": 1, "load__bias": 1} | rest), load__vector=rng.getrandbits(16 * n))
                    await ports.tick()
                ports.set(load__write=1, load__bias=1, load__vector=words[n * beat : n * (beat + 1)])
                await ports.tick()
            for lane, (low, high) in enumerate(zip(words[::2], words[1::2])) if half is Half.WHOLE else ():
                rows[row][lane] = high << 16 | low
            for lane, word in enumerate(words) if half is not Half.WHOLE else ():
                shift = 16 if half is Half.UPPER else 0
                rows[row][lane] = rows[row][lane] & ~(0xFFFF << shift) | word << shift
        ports.set(load__write=0)
        while rng.random() < pauses:
            junk = {"load__row": rng.randrange(2 * depth), **({"load__half": rng.randrange(3)} if halves else {})}
            ports.set(load__vector=rng.getrandbits(16 * n), **junk)
            await ports.tick()
    for _ in range(2):  # until the last vector is written
        await ports.tick()
    for row in range(depth):  # column c reads in its own time
        ports.set(bias_row=row)
        for _ in range(n + 2):
            await ports.tick()
        assert ports.lanes("top", n) == rows[row], f"row {row}"


@pytest.mark.parametrize("n, depth, halves", [(2, 2, True), (4, 8, False), (8, 16, True)])
def test_random(n, depth, halves):
    path = BiasPath(n=n, depth=depth, halves=halves)
    simulate(path, loads, seed=seed(), n=n, depth=depth, halves=halves, count=60)
