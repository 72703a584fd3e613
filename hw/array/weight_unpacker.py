"""The unpacker of weights: the path of loaded weights in a core that decodes them from OCP MX formats."""

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from ..lib.hierarchy import instantiate
from ..spec.codes import WeightFormat
from ..spec.memory_ports import loads_port, vectors_port
from .weight_decoder import WeightDecoder
from .weight_port import WeightPort

__all__ = ["WeightUnpacker"]


class WeightUnpacker(wiring.Component):
    """Buffers the vectors of LOAD_WEIGHTS, and writes the weights to the weight FIFO as bfloat16.

    A buffer is needed since a vector of codes gives several vectors of weights. Vectors of bfloat16 pass through a
    :class:`.WeightPort`. For other formats, `weight_rows` columns are decoded in a cycle; a vector of scales, or of the upper
    bits of MXFP6, takes one cycle. :func:`sim.golden.weight_formats.packed` describes the layout.

    Parameters
    ----------
    n : int
        Lanes, 8 to 32.
    tiles : int
        Tiles in the weight FIFO.
    transfer : layout
        :func:`hw.spec.operations.transfer_layout`, with `weight_format`.
    transposes : bool
        Transpose tiles of bfloat16.
    weight_rows : int
        Vectors of a word of the FIFO, 1 or 2.

    Members
    -------
    load : loads port, in
        See :func:`hw.spec.memory_ports.loads_port`. At most `depth` vectors may be requested that are not `taken`.
    taken : 1, out
        A vector has left the buffer: one credit.
    freed : 1, in
        A tile has left the FIFO.
    few : 1, out
        Two cycles ago, the FIFO held fewer than `low` tiles.
    vectors : vectors port, out
        To the weight FIFO; see :func:`hw.spec.memory_ports.vectors_port`.
    """

    #: Vectors in the buffer: they cover the latency of a memory.
    depth = 128
    #: Cycles in which tiles of the FIFO shift into the array, so that other reads may have priority.
    cushion = 64

    def __init__(self, *, n, tiles, transfer, transposes, weight_rows):
        self.n, self.tiles, self.transfer, self.transposes, self.weight_rows = n, tiles, transfer, transposes, weight_rows
        self.low = min(tiles // 2, self.cushion * weight_rows // n)
        super().__init__(
            {
                "load": In(loads_port(transfer, 16 * n)),
                "few": Out(1, init=1),
                "taken": Out(1),
                "freed": In(1),
                "vectors": Out(vectors_port(n, weight_rows)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        n, load = self.n, self.load
        kinds = [name for name in ("transpose", "weight_format", "last") if hasattr(load, name)]
        entry = data.StructLayout({"vector": 16 * n, **{name: getattr(load, name).shape() for name in kinds}})
        m.submodules.buffer = buffer = SyncFIFOBuffered(width=entry.size, depth=self.depth)
        stored, head = Signal(entry), data.View(entry, buffer.r_data)
        m.d.comb += [
            *(stored[name].eq(getattr(load, name)) for name in ("vector", *kinds)),
            buffer.w_data.eq(stored.as_value()),
            buffer.w_en.eq(load.write),
            buffer.r_en.eq(self.taken),
        ]
        coded = Signal()
        m.d.comb += coded.eq(head.weight_format != WeightFormat.BFLOAT16)

        # A tile starts if the FIFO has room for it. `column` is the next column of the tile.
        column, room, has_room, may = Signal(range(n)), Signal(range(self.tiles + 1), init=self.tiles), Signal(init=1), Signal()
        plain, step = Signal(), Signal()  # a vector of bfloat16 leaves; columns are decoded
        starts = (plain | step) & (column == 0)
        m.d.comb += may.eq(buffer.r_rdy & ((column != 0) | has_room))
        m.d.sync += [room.eq(room + self.freed - starts), has_room.eq(room != 0)]  # a tile takes more than two cycles
        m.d.sync += self.few.eq(room > self.tiles - self.low)

        m.submodules.port = port = WeightPort(
            n=n, transfer=self.transfer, transposes=self.transposes, weight_rows=self.weight_rows
        )
        decoding, written = Signal(WeightDecoder.latency), Signal()
        # Tiles leave in order: one kind of vectors waits until all vectors of the other kind have left.
        inside, empty = Signal(range(4 * n)), Signal(init=1)
        m.d.comb += [
            plain.eq(may & ~coded & ~decoding.any()),
            port.load.write.eq(plain),
            port.load.vector.eq(head.vector),
            *([port.load.transpose.eq(head.transpose)] if self.transposes else []),
            written.eq(port.vectors.write.any()),
        ]
        m.d.sync += [inside.eq(inside + plain - written), empty.eq((inside == 0) & ~plain)]

        decoded, takes = self._decode(m, platform, head, coded & may & empty, column, step)
        m.d.sync += decoding.eq(Cat(step, decoding[:-1]))
        with m.If(plain):
            m.d.sync += column.eq(column + 1)
        with m.If(step):
            m.d.sync += column.eq(column + self.weight_rows)
        m.d.comb += [
            self.taken.eq(plain | takes),
            self.vectors.write.eq(Mux(decoding[-1], Const(-1, self.weight_rows), port.vectors.write)),
            self.vectors.vector.eq(Mux(decoding[-1], decoded, port.vectors.vector)),
        ]
        return m

    def _decode(self, m, platform, head, present, column, step):
        """Adds the decoders, and the state of the layout of codes. Drives `step`: columns are decoded. Returns the decoded
        vectors, lane 0 lowest, and a value that is 1 if the vector `head` is complete."""
        n, rows = self.n, self.weight_rows
        is_format = {one: head.weight_format == one for one in WeightFormat}
        is_six, is_four = is_format[WeightFormat.MXFP6], is_format[WeightFormat.MXFP4]
        # `scales` is a queue: its lowest byte is the scale of the next column. `upper` has the upper bits of eight columns.
        scales, upper = Signal(16 * n, reset_less=True), Signal(16 * n, reset_less=True)
        wants_scales, wants_upper, second = Signal(init=1), Signal(init=1), Signal()
        takes_scales, takes_upper, ends = Signal(), Signal(), Signal()
        # The last column of the step in each group of two, four and eight: a step never crosses the end of a group.
        places = Cat(Const(1, 1), column[1:3]) if rows == 2 else column[:3]
        m.d.comb += [
            takes_scales.eq(present & wants_scales),
            takes_upper.eq(present & ~wants_scales & is_six & wants_upper),
            step.eq(present & ~wants_scales & ~(is_six & wants_upper)),
            ends.eq(Mux(is_six | is_four, places[:2].all(), places[0])),
        ]
        with m.If(takes_scales):
            m.d.sync += [scales.eq(head.vector), wants_scales.eq(0)]
        with m.If(takes_upper):
            m.d.sync += [upper.eq(head.vector), wants_upper.eq(0)]
        with m.If(step):
            m.d.sync += scales.eq(scales >> 8 * rows)
            with m.If(places.all()):
                m.d.sync += wants_upper.eq(1)
            with m.If(column == n - rows):
                m.d.sync += [wants_scales.eq(second | head.last), second.eq(~second & ~head.last)]

        decoded = Signal(16 * n * rows)
        for stream in range(rows):
            place = Cat(Const(stream, 1), column[1:3]) if rows == 2 else column[:3]
            for lane in range(n):
                word, high = head.vector.word_select(lane, 16), upper.word_select(lane, 16).word_select(place, 2)
                low = word.word_select(place[:2], 4)
                instantiate(
                    m,
                    platform,
                    WeightDecoder,
                    name=f"decoder_{stream}_{lane}",
                    module="tpu_weight_decoder",
                    format=head.weight_format,
                    code=Mux(is_six, Cat(low, high), Mux(is_four, low, word.word_select(place[0], 8))),
                    scale=scales.word_select(stream, 8),
                    o=decoded.word_select(stream * n + lane, 16),
                )
        return decoded, takes_scales | takes_upper | (step & ends)
