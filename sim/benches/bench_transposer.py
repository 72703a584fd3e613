"""Bench of the transposer. Tiles enter with gaps, and each output vector is checked in its cycle."""

import cocotb
import numpy as np

from amaranth_tpu.hw.array.transposer import Transposer

from ..rtl.bench_side import arguments, report
from ..rtl.ports import play

#: Symbols of the input in one cycle: no vector, a vector of a tile that is not transposed, or a vector of a tile that is
#: transposed.
GAP, PLAIN, TRANSPOSED = range(3)


class Feeder:
    """Drives one input symbol per cycle, and checks the output vectors."""

    def __init__(self, ports, rng, n):
        self.ports, self.rng, self.n = ports, rng, n
        self.tile, self.due, self.tiles = [], {}, 0

    async def step(self, symbol):
        """Drives one symbol for one cycle. The input `transpose` is random for a vector that is not the last of its tile."""
        vector = [self.rng.getrandbits(16) for _ in range(self.n)]
        cycle, ends = self.ports.cycle, symbol != GAP and len(self.tile) == self.n - 1
        transpose = symbol == TRANSPOSED if ends else self.rng.getrandbits(1)
        self.ports.set(i_valid=symbol != GAP, i=vector, transpose=transpose)
        await self.ports.settle()
        expected = self.due.pop(cycle, None)
        said = f"cycle {cycle}: a vector {'is missing' if expected else 'comes out of nothing'}"
        assert self.ports.get("o_valid") == (expected is not None), said
        if expected is not None:
            assert self.ports.lanes("o", self.n) == expected, f"cycle {cycle}: wrong vector"
        if symbol != GAP:
            self.tile.append(vector)
        if ends:
            tile = np.array(self.tile)
            for number, out in enumerate((tile.T if transpose else tile).tolist()):
                due = cycle + Transposer.latency + number
                assert due not in self.due, "the bench expects two vectors in one cycle"
                self.due[due] = out
            self.tile, self.tiles = [], self.tiles + 1
        await self.ports.tick()

    async def drain(self):
        for _ in range(2 * self.n + Transposer.latency):
            await self.step(GAP)
        assert not self.due


async def random_tiles(ports, rng, *, n, count):
    """Feeds random tiles at full throughput and at random rates. Between two rates, a reset interrupts a tile."""
    for pace in (1, 0.9, 0.5, 0.2):
        feeder = Feeder(ports, rng, n)
        while feeder.tiles < count or feeder.tile:
            await feeder.step(rng.choice((PLAIN, TRANSPOSED)) if rng.random() < pace else GAP)
        await feeder.drain()
        for _ in range(rng.randrange(3 * n)):
            ports.set(i_valid=rng.getrandbits(1), i=rng.getrandbits(16 * n), transpose=rng.getrandbits(1))
            await ports.settle()
            await ports.tick()
        ports.set(i_valid=0)
        await ports.reset()


def de_bruijn(symbols, length):
    """Returns a cyclic sequence that contains every word of `length` symbols exactly once (Fredricksen, Kessler, Maiorana)."""
    word, sequence = [0] * (length + 1), []

    def extend(place, period):
        if place > length:
            if length % period == 0:
                sequence.extend(word[1 : period + 1])
            return
        word[place] = word[place - period]
        extend(place + 1, period)
        for symbol in range(word[place - period] + 1, symbols):
            word[place] = symbol
            extend(place + 1, place)

    extend(1, 1)
    return sequence


async def every_window(ports, rng, *, n, length):
    """Feeds every word of `length` symbols from every state of the transposer: after each number of vectors of a tile, and in
    each orientation of its storage."""
    ring = de_bruijn(3, length)
    for diagonal in range(2):
        for number in range(n):
            feeder = Feeder(ports, rng, n)
            for _ in range(n * diagonal):
                await feeder.step(TRANSPOSED)
            await feeder.drain()
            for symbol in [PLAIN] * number + ring + ring[: length - 1]:
                await feeder.step(symbol)
            await feeder.drain()
            await ports.reset()
    return len(ring)


@cocotb.test()
async def tiles(dut):
    job = arguments()
    report(await play(dut, Transposer(n=job["n"]), random_tiles, **job))
