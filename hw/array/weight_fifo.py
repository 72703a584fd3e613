"""The weight FIFO. It holds tiles from host memory, and shifts them into the array while the array still uses the tile before."""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..lib.checks import check_power_of_two
from ..lib.hierarchy import instantiate
from ..lib.memories import NO_COLLISIONS
from ..spec.memory_ports import tiles_port, vectors_port, weight_edge

__all__ = ["WeightFifoLane", "WeightFifo"]


class WeightFifoLane(wiring.Component):
    """One lane of the FIFO: the weights of one row of the array, and the registers that delay the control signals for the next
    lane.

    A `step` reads the next word. The lane has its own read pointer. `w`, `mark` and `switch` appear two cycles after `step_i`,
    `mark_i` and `switch_i`: a register separates the memory from the array, which may be far away. `step_o`, `mark_o`,
    `switch_o` and `last_o` follow their inputs by `skew` cycles.

    Parameters
    ----------
    depth : int
        Number of words, a power of two.
    skew : int
        Cycles between this lane and the next.
    weight_rows : int
        Weights of a word, 1 or 2.

    Members
    -------
    step_i, step_o : 1
        Read the next word.
    mark_i, mark_o : 1
        The word is the first of its tile.
    switch_i, switch_o : 1
        Make the shadow tile active.
    last_i, last_o : 1
        The word is the last of its tile.
    w : 16 weight_rows, out
    mark, switch : 1, out
        To the array. The upper of two weights is one cycle later.
    write_address : position, in
    write : weight_rows, in
        Weights of the word that are written.
    write_data : 16 weight_rows, in
    """

    def __init__(self, *, depth, skew, weight_rows=1):
        self.depth = depth
        self.skew = skew
        self.weight_rows = weight_rows
        super().__init__(
            {
                "step_i": In(1),
                "mark_i": In(1),
                "switch_i": In(1),
                "last_i": In(1),
                "step_o": Out(1),
                "mark_o": Out(1),
                "switch_o": Out(1),
                "last_o": Out(1),
                "w": Out(16 * weight_rows),
                "mark": Out(1),
                "switch": Out(1),
                "write_address": In(bits_for(depth - 1)),
                "write": In(weight_rows),
                "write_data": In(16 * weight_rows),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=16 * self.weight_rows, depth=self.depth, init=[], attrs=NO_COLLISIONS)
        write, read = memory.write_port(granularity=16 if self.weight_rows > 1 else None), memory.read_port()
        # A step advances the address one cycle later, in time to read the next word.
        position, stepped = Signal(range(self.depth)), Signal()
        w, marked, switched = Signal(16 * self.weight_rows, reset_less=True), Signal(), Signal()
        m.d.comb += [
            write.addr.eq(self.write_address),
            write.en.eq(self.write),
            write.data.eq(self.write_data),
            read.addr.eq(position + stepped),
            read.en.eq(1),  # cells ignore words without a mark
        ]
        if self.weight_rows == 1:
            m.d.comb += self.w.eq(w)
        else:
            upper = Signal(16, reset_less=True)
            m.d.sync += upper.eq(w[16:])
            m.d.comb += self.w.eq(Cat(w[:16], upper))
        m.d.sync += [
            stepped.eq(self.step_i),
            position.eq(read.addr),
            w.eq(read.data),
            marked.eq(self.mark_i),
            self.mark.eq(marked),
            switched.eq(self.switch_i),
            self.switch.eq(switched),
        ]
        for name in ("step", "mark", "switch", "last"):
            chain = Signal(self.skew, name=f"{name}_chain")
            m.d.sync += chain.eq((chain << 1) | getattr(self, f"{name}_i"))
            m.d.comb += getattr(self, f"{name}_o").eq(chain[-1])
        return m


class WeightFifo(wiring.Component):
    """Holds `tiles` tiles of n x n bfloat16 weights; shifts the next tile into the array while the active one computes.

    A tile is written as n vectors, vector c for column c, or as n / 2 pairs of vectors. There is no backpressure: the writer
    counts credits, and `freed` returns one when a tile has left. `tiles.coming` says that the array's shadow registers hold a
    complete tile from the next cycle on. `tiles.switch` then makes that tile active for the row that the unified buffer reads
    one cycle later, and clears `coming`.
    A tile takes n / `weight_rows` cycles to shift in (`shifting`). The next tile starts in the cycle of `switch`, so the
    throughput is one tile in that number of cycles.

    Parameters
    ----------
    n : int
        Rows and columns of a tile.
    tiles : int
        Tiles, a power of two, at least 2.
    skew : int
        Cycles between two rows of the array.
    weight_rows : int
        Vectors that leave in a cycle: 1, or 2 if n is at least 4.

    Members
    -------
    vectors : vectors port, in
        The next vector of a tile; see :func:`hw.spec.memory_ports.vectors_port`.
    freed : 1, out
        A tile has left: one credit.
    shifting : 1, out
        A tile is being shifted into the array.
    tiles : tiles port, in
        See :func:`hw.spec.memory_ports.tiles_port`.
    edge : weight edge, out
        To the array; see :func:`hw.spec.memory_ports.weight_edge`.
    """

    def __init__(self, *, n, tiles, skew, weight_rows=1):
        check_power_of_two("tiles", tiles, 2)
        self.n = n
        self.capacity = tiles
        self.skew = skew
        self.weight_rows = weight_rows
        super().__init__(
            {
                "vectors": In(vectors_port(n, weight_rows)),
                "freed": Out(1),
                "shifting": Out(1),
                "tiles": In(tiles_port()),
                "edge": Out(weight_edge(n, weight_rows)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n, steps = self.n, self.n // self.weight_rows
        depth = self.capacity * steps

        write_address = Signal(range(depth))
        tile_written = Signal()
        complete = self.vectors.write[-1]  # a word of the lanes
        m.d.comb += tile_written.eq(complete & (write_address[: bits_for(steps - 1)] == steps - 1))
        with m.If(complete):
            m.d.sync += write_address.eq(write_address + 1)

        # `available`: a tile is stored, and the tile before it has been read.
        count, available = Signal(range(self.capacity + 1)), Signal()
        remaining, under_way, loaded = Signal(range(steps)), Signal(), Signal()
        first, last = Signal(), Signal()
        step = Signal()
        m.d.comb += [
            self.shifting.eq(step),
            first.eq(available & (~loaded | self.tiles.switch)),
            last.eq(remaining == 1),
            step.eq(first | under_way),
            self.tiles.coming.eq(loaded | last),
        ]
        m.d.sync += [
            count.eq(count + tile_written - first),
            available.eq(((count != 0) | tile_written) & (last | (~under_way & ~first))),
        ]
        with m.If(self.tiles.switch):
            m.d.sync += loaded.eq(0)
        with m.If(first):
            m.d.sync += [remaining.eq(steps - 1), under_way.eq(1)]
        with m.Elif(under_way):
            m.d.sync += remaining.eq(remaining - 1)
        with m.If(last):
            m.d.sync += [under_way.eq(0), loaded.eq(1)]

        moving = {"step": step, "mark": first, "switch": self.tiles.switch, "last": last}
        for r in range(n):
            down = {name: Signal(name=f"{name}_{r}") for name in moving}
            instantiate(
                m,
                platform,
                lambda: WeightFifoLane(depth=depth, skew=self.skew, weight_rows=self.weight_rows),
                name=f"lane_{r}",
                module="tpu_weight_fifo_lane",
                **{f"{name}_i": value for name, value in moving.items()},
                **{f"{name}_o": value for name, value in down.items()},
                w=self.edge.w.word_select(r, 16 * self.weight_rows),
                mark=self.edge.mark[r],
                switch=self.edge.switch[r],
                write_address=write_address,
                write=self.vectors.write,
                write_data=Cat(self.vectors.vector.word_select(r + n * word, 16) for word in range(self.weight_rows)),
            )
            moving = down
        m.d.comb += self.freed.eq(moving["last"])
        return m
