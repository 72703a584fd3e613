"""Bench of the weight FIFO. Tiles enter, and the bench checks the weights that the cells of an array would use."""

import cocotb

from amaranth_tpu.hw.array.weight_fifo import WeightFifo

from ..rtl.bench_side import arguments, report
from ..rtl.ports import play


class WeightRegisters:
    """A model of the weight registers of n x n cells. The words of a lane, `weight_rows` in a cycle, move `weight_rows` columns
    to the right per cycle, marks half as far.

    A mark at column c loads the word at that column into the next weight. A switch copies the next weight to the active weight; a
    mark in the same cycle takes effect after the switch.
    """

    def __init__(self, n, weight_rows):
        self.n, self.weight_rows = n, weight_rows
        self.words, self.marks, self.switches = ([[] for _ in range(n)] for _ in range(3))
        self.shadow, self.running = ([[None] * n for _ in range(n)] for _ in range(2))

    def step(self, words, marks, switches):
        """Simulates one cycle. Returns the cells `(r, c)` whose active weight changes."""
        switched, pace = [], 2 // self.weight_rows
        for r in range(self.n):
            for history, value in ((self.words, words), (self.marks, marks), (self.switches, switches)):
                history[r].append(value[r])
            now = len(self.words[r]) - 1
            for c in range(self.n):
                if now >= c and self.switches[r][now - c]:
                    self.running[r][c] = self.shadow[r][c]
                    switched.append((r, c))
                if now >= pace * c and self.marks[r][now - pace * c]:
                    moved, stream = divmod(c, self.weight_rows)  # the second stream enters in column 1
                    self.shadow[r][c] = self.words[r][now - moved][stream]
        return switched


def write(ports, rng, *, n, weight_rows, first=0, vectors=(), switch=0):
    """Sets the inputs: writes the `vectors` of columns `first`, `first` + 1 of a tile, with random bits in all other lanes."""
    halves = {(first + column) % weight_rows: vector for column, vector in enumerate(vectors)}
    lanes = [halves.get(half) or [rng.getrandbits(16) for _ in range(n)] for half in range(weight_rows)]
    ports.set(vectors__write=sum(1 << half for half in halves), vectors__vector=sum(lanes, []), tiles__switch=switch)


async def traffic(ports, rng, *, n, tiles, skew, count, pace, weight_rows=1):
    """Moves `count` tiles through the FIFO. Writer and reader each act with probability `pace` per cycle if they can.

    Returns the cycles in which the active tile was switched.
    """
    weights = [[[rng.getrandbits(16) for _ in range(n)] for _ in range(n)] for _ in range(count)]  # [tile][column][row]
    cells, done = WeightRegisters(n, weight_rows), [[0] * n for _ in range(n)]
    start = ports.cycle
    written = freed = shifted = 0
    last_read, switches, was_shifting = [], [], []
    patience, loaded = 0, False
    while min(map(min, done)) < count or freed < count:
        cycle = ports.cycle - start
        assert cycle < (count + 4) * (tiles * n + n * skew + 40 * n), f"stuck: {written} vectors written, {done} switched"

        room = written % n or written // n - freed < tiles
        writes = written < count * n and room and rng.random() < pace
        most = 1 + (weight_rows == 2 and written % 2 == 0 and rng.random() < 0.5)
        vectors = weights[written // n][written % n :][:most] if writes else []
        write(ports, rng, n=n, weight_rows=weight_rows, first=written, vectors=vectors)
        await ports.settle()
        switch = loaded and rng.random() < pace
        if switch:
            ports.set(tiles__switch=1)
            await ports.settle()
            assert len(switches) * n < written
            switches.append(cycle)

        # A complete tile may only be delayed by the array.
        was_shifting.append(ports.get("shifting"))
        shifted += was_shifting[-1]
        patience = patience + 1 if written // n > len(switches) and not loaded and not was_shifting[-1] else 0
        assert patience <= 2, f"cycle {cycle}: a complete tile does not move"

        marks, now = ports.lanes("edge__mark", n), ports.lanes("edge__switch", n)
        for r in range(n):
            right = int(cycle - 2 - r * skew in switches)
            assert now[r] == right, f"cycle {cycle}: switch of row {r} is {now[r]}, not {right}"
        words = ports.lanes("edge__w", n * weight_rows)
        for r, c in cells.step([words[r * weight_rows :][:weight_rows] for r in range(n)], marks, now):
            tile = done[r][c]
            found, right = cells.running[r][c], weights[tile][c][r]
            assert found == right, f"cycle {cycle}: weight {r}, {c} of tile {tile} is {found}, not {right:#06x}"
            done[r][c] += 1
        if marks[-1]:
            last_read.append(cycle - 2 + n // weight_rows - 1)
        if ports.get("freed"):
            assert freed < len(last_read) and cycle >= last_read[freed], f"cycle {cycle}: freed while lane {n - 1} still reads"
            freed += 1
        written += len(vectors)
        loaded = ports.get("tiles__coming") == 1 and not switch
        await ports.tick()
    assert freed == count and len(switches) == count
    assert shifted * weight_rows == count * n, f"{shifted} cycles of shifting for {count} tiles of {n}"
    ports.set(vectors__write=0, tiles__switch=0)
    return switches


async def runs(ports, rng, *, n, tiles, skew, count, weight_rows=1):
    """Tests the FIFO at random rates, with a reset after each, and then at full throughput, one tile every n cycles."""
    sizes = {"n": n, "tiles": tiles, "skew": skew, "weight_rows": weight_rows}
    for pace in (0.1, 0.5, 0.9):
        await traffic(ports, rng, **sizes, count=count, pace=pace)
        for _ in range(rng.randrange(3 * n)):  # write part of a tile, which may already be shifting, before the reset
            ports.set(
                vectors__write=rng.getrandbits(weight_rows),
                vectors__vector=rng.getrandbits(16 * n * weight_rows),
                tiles__switch=0,
            )
            await ports.settle()
            await ports.tick()
        ports.set(vectors__write=0)
        await ports.reset()
        await ports.settle()
        assert ports.get("tiles__coming") == 0 and ports.get("shifting") == 0 and not ports.get("edge__mark")
    switches = await traffic(ports, rng, **sizes, count=count, pace=1)
    return {"distances": [after - before for before, after in zip(switches, switches[1:])]}


async def stocked(ports, rng, *, n, tiles, skew, weight_rows=1):
    """Reads a full FIFO, with each switch as early as possible. Returns the cycles between tiles, which must be n, or n / 2 with
    a `weight_rows` of 2."""
    for column in range(tiles * n):
        write(ports, rng, n=n, weight_rows=weight_rows, first=column, vectors=[[0] * n])
        await ports.settle()
        await ports.tick()
    ports.set(vectors__write=0)
    switches, loaded = [], False
    for _ in range(tiles * n + 4 * n):
        ports.set(tiles__switch=loaded)
        await ports.settle()
        if loaded:
            switches.append(ports.cycle)
        loaded = ports.get("tiles__coming") == 1 and not loaded
        await ports.tick()
    assert len(switches) == tiles
    return [after - before for before, after in zip(switches, switches[1:])]


async def first_tile(ports, rng, *, n, tiles, skew, weight_rows=1):
    """Measures the FIFO's latency. Returns the cycles from the last vector of a tile to its `coming`, and to `freed`, when its
    entry is free again."""
    for column in range(n):
        write(ports, rng, n=n, weight_rows=weight_rows, first=column, vectors=[[0] * n])
        await ports.settle()
        await ports.tick()
    ports.set(vectors__write=0)
    seen = {"tiles__coming": [], "freed": []}
    for cycle in range(1, 3 * n * (skew + 1)):
        await ports.settle()
        for name, cycles in seen.items():
            if ports.get(name):
                cycles.append(cycle)
        await ports.tick()
    assert len(seen["freed"]) == 1
    return seen["tiles__coming"][0], seen["freed"][0]


@cocotb.test()
async def random_tiles(dut):
    job = arguments()
    component = WeightFifo(**{name: job[name] for name in ("n", "tiles", "skew", "weight_rows")})
    report(await play(dut, component, runs, **job))
