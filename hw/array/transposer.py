"""A transposer of n x n tiles."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.checks import check_power_of_two
from ..lib.hierarchy import instantiate

__all__ = ["TransposerColumn", "Transposer"]


def _exchanged(m, name, vector, by):
    """Returns the vector with its words in another order: word i moves to index i ^ `by`.

    The vector after each bit of `by` is a signal, whose name begins with `name`. An export repeats an expression for each of its
    uses, so the words as expressions would be written n times.
    """
    for bit in range(len(by)):
        moved = Cat(vector.word_select(place ^ 1 << bit, 16) for place in range(1 << len(by)))
        chosen = Signal(len(vector), name=f"{name}_{bit}")
        m.d.comb += chosen.eq(Mux(by[bit], moved, vector))
        vector = chosen
    return vector


class TransposerColumn(wiring.Component):
    """The memory of one column of a :class:`Transposer`. It holds one word of each vector of a tile. If the same word is read and
    written in one cycle, the read returns the old value.

    Parameters
    ----------
    n : int
        Number of words.

    Members
    -------
    write : 1, in
    write_address : position, in
    i : 16, in
    read_address : position, in
    o : 16, out
        The word at `read_address`, one cycle later.
    """

    def __init__(self, *, n):
        self.n = n
        position = exact_log2(n)
        super().__init__({"write": In(1), "write_address": In(position), "i": In(16), "read_address": In(position), "o": Out(16)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=16, depth=self.n, init=[])
        write, read = memory.write_port(), memory.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(self.write),
            write.addr.eq(self.write_address),
            write.data.eq(self.i),
            read.addr.eq(self.read_address),
        ]
        word = Signal(16, reset_less=True)
        m.d.sync += word.eq(read.data)
        m.d.comb += self.o.eq(word)
        return m


class Transposer(wiring.Component):
    """Passes tiles of n vectors of n words, each unchanged or transposed.

    Throughput: one vector a cycle, without backpressure. The vectors of a tile leave one a cycle, the first one `latency`
    cycles after the last one entered.

    The memory holds one tile, in n columns. Word r of vector v is in column r ^ v, at address v (vectors are rows) or at
    address r (vectors are diagonals: column c, address c ^ v). If the vectors of a tile are rows, the vectors of the transposed
    tile are diagonals, and vice versa; either way, a vector has one word in every column. A vector of the next tile overwrites
    a vector that has left, so the next tile is stored in the orientation in which the last tile was read.

    Parameters
    ----------
    n : int
        Vectors of a tile, and words of a vector: a power of two, at least 2.

    Attributes
    ----------
    latency : int
        Cycles from the last vector of a tile that enters to the first one that leaves.

    Members
    -------
    i_valid : 1, in
        `i` is valid.
    i : 16 n, in
    transpose : 1, in
        Sampled with the last vector of a tile: transpose the tile.
    o_valid : 1, out
    o : 16 n, out
    """

    latency = 4

    def __init__(self, *, n):
        check_power_of_two("n", n, 2)
        self.n = n
        vector = 16 * n
        super().__init__({"i_valid": In(1), "i": In(vector), "transpose": In(1), "o_valid": Out(1), "o": Out(vector)})

    def elaborate(self, platform):
        m = Module()
        n = self.n
        number = Signal(range(n))  # of the next vector
        with m.If(self.i_valid):
            m.d.sync += number.eq(number + 1)

        # The vector to be stored, one cycle later, with its words permuted to their columns.
        stored, stored_number = Signal(), Signal(range(n))
        last, transpose = Signal(), Signal()
        words = Signal(16 * n, reset_less=True)
        m.d.sync += [
            stored.eq(self.i_valid),
            stored_number.eq(number),
            last.eq(self.i_valid & (number == n - 1)),
            transpose.eq(self.transpose),
            words.eq(_exchanged(m, "stored", self.i, number)),
        ]

        # `diagonal`: the stored tile is read by diagonals, and the next one is written by diagonals.
        reading, read_number, diagonal = Signal(), Signal(range(n)), Signal()
        with m.If(reading):
            m.d.sync += read_number.eq(read_number + 1)
        with m.If(last):
            m.d.sync += [reading.eq(1), diagonal.eq(diagonal ^ transpose)]
        with m.Elif(read_number == n - 1):
            m.d.sync += reading.eq(0)

        def address(number, column):
            return Cat(bit ^ diagonal if column >> place & 1 else bit for place, bit in enumerate(number))

        found = Signal(16 * n)
        for column in range(n):
            instantiate(
                m,
                platform,
                lambda: TransposerColumn(n=n),
                name=f"column_{column}",
                module="tpu_transposer_column",
                write=stored,
                write_address=address(stored_number, column),
                i=words.word_select(column, 16),
                read_address=address(read_number, column),
                o=found.word_select(column, 16),
            )
        found_valid, found_number = Signal(), Signal(range(n))
        vector = Signal(16 * n, reset_less=True)
        m.d.sync += [
            found_valid.eq(reading),
            found_number.eq(read_number),
            self.o_valid.eq(found_valid),
            vector.eq(_exchanged(m, "found", found, found_number)),
        ]
        m.d.comb += self.o.eq(vector)
        return m
