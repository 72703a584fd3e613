"""Tiles by rows become tiles by columns, on their way to the weight FIFO."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..lib.checks import check_power_of_two
from ..lib.hierarchy import instantiate

__all__ = ["TransposerColumn", "Transposer"]


def _exchanged(words, by):
    """The words, that of place i in place i ^ by."""
    for bit in range(len(by)):
        words = [Mux(by[bit], words[place ^ 1 << bit], word) for place, word in enumerate(words)]
    return words


class TransposerColumn(wiring.Component):
    """A word of each of a tile's vectors. A word that is read and written in the same cycle is read as it was.

    Parameters
    ----------
    n : int
        Words.

    Members
    -------
    write : 1, in
    write_address : position, in
    i : 16, in
    read_address : position, in
    o : 16, out
        One cycle later.
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
    """Tiles of n vectors of n words go through, each as it is or transposed: vector v then holds word v of each vector.

    A vector can come in every cycle. When all vectors of a tile have come, they leave by themselves, one a cycle, the first
    `latency` cycles after the last one came; there is no back-pressure.

    There is room for one tile. Word r of vector v is in column r ^ v, either at address v, so that the vector is a row of the
    columns, or at address r, so that it is a diagonal: column c at address c ^ v. Where the tile's vectors are rows, those of the
    transposed tile are diagonals, and the other way round; and each has a word in every column. A vector of the next tile goes
    to where one of this tile has left, at the earliest in the same cycle; so the next tile's are rows or diagonals as this one's
    were when it left.

    Parameters
    ----------
    n : int
        Vectors of a tile, and words of a vector: a power of two, at least 2.

    Attributes
    ----------
    latency : int
        Cycles.

    Members
    -------
    i_valid : 1, in
        A vector comes.
    i : 16 n, in
    transpose : 1, in
        With a tile's last vector: whether it is to be transposed.
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
        number = Signal(range(n))  # of the vector that comes next
        with m.If(self.i_valid):
            m.d.sync += number.eq(number + 1)

        # Stored from here: a cycle later, with the words in their columns.
        stored, stored_number = Signal(), Signal(range(n))
        last, transpose = Signal(), Signal()
        words = [Signal(16, name=f"word_{column}", reset_less=True) for column in range(n)]
        m.d.sync += [
            stored.eq(self.i_valid),
            stored_number.eq(number),
            last.eq(self.i_valid & (number == n - 1)),
            transpose.eq(self.transpose),
            *(word.eq(new) for word, new in zip(words, _exchanged([self.i.word_select(r, 16) for r in range(n)], number))),
        ]

        # `diagonal`: vectors of the stored tile leave from diagonals, and those of the next one go there.
        reading, read_number, diagonal = Signal(), Signal(range(n)), Signal()
        with m.If(reading):
            m.d.sync += read_number.eq(read_number + 1)
        with m.If(last):
            m.d.sync += [reading.eq(1), diagonal.eq(diagonal ^ transpose)]
        with m.Elif(read_number == n - 1):
            m.d.sync += reading.eq(0)

        def address(number, column):
            """Of what belongs to a vector."""
            return Cat(bit ^ diagonal if column >> place & 1 else bit for place, bit in enumerate(number))

        found = [Signal(16, name=f"found_{column}") for column in range(n)]
        for column in range(n):
            instantiate(
                m,
                platform,
                lambda: TransposerColumn(n=n),
                name=f"column_{column}",
                module="tpu_transposer_column",
                write=stored,
                write_address=address(stored_number, column),
                i=words[column],
                read_address=address(read_number, column),
                o=found[column],
            )
        found_valid, found_number = Signal(), Signal(range(n))
        vector = Signal(16 * n, reset_less=True)
        m.d.sync += [
            found_valid.eq(reading),
            found_number.eq(read_number),
            self.o_valid.eq(found_valid),
            vector.eq(Cat(_exchanged(found, found_number))),
        ]
        m.d.comb += self.o.eq(vector)
        return m
