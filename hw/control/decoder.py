"""Instruction decode: every check that can be made before anything happens, and the footprint of what remains."""

import functools
import operator

from amaranth import Array, Cat, Const, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.isa import FIELDS, REGION_WRITABLE, TABLE_WORDS, Fault, Format, Function, Opcode, Region, exists, layout
from ..spec.operations import Task, activate_layout, instruction_layout, matmul_layout, transfer_layout

__all__ = ["CYCLES", "Decoder", "Unit", "footprint_layout", "decoded_layout"]


class Unit(enum.Enum, shape=3):
    """Who executes an instruction."""

    LOAD = 0
    WEIGHTS = 1
    STORE = 2
    MATMUL = 3
    ACTIVATE = 4
    CONTROL = 5


def footprint_layout():
    """What an instruction touches: for each space, first and last place, and whether it is read or written."""
    def span(width):
        return data.StructLayout({"first": width, "last": width, "reads": 1, "writes": 1})

    return data.StructLayout({
        "unit": Unit, "region": Region, "host": span(32), "buffer": span(16), "acc": span(16), "bias": span(16),
    })


def decoded_layout(config):
    """A checked instruction. Of the three operations, the one for `footprint.unit` counts."""
    return data.StructLayout({
        "halt": 1, "footprint": footprint_layout(),
        "transfer": transfer_layout(config), "matmul": matmul_layout(config), "activate": activate_layout(config),
    })


#: Counts that may not be 0.
_COUNTS = ("rows", "rows0", "rows1", "tiles", "tiles0", "tiles1", "window0", "window1")

#: opcode: (unit, host, buffer, acc, bias), each space `r` read, `w` written, both or `-`.
_USES = {
    Opcode.HALT: (Unit.CONTROL, "-", "-", "-", "-"),
    Opcode.SYNC: (Unit.CONTROL, "-", "-", "-", "-"),
    Opcode.LOAD: (Unit.LOAD, "r", "w", "-", "-"),
    Opcode.LOAD_BIAS: (Unit.LOAD, "r", "-", "-", "w"),
    Opcode.LOAD_WEIGHTS: (Unit.WEIGHTS, "r", "-", "-", "-"),
    Opcode.STORE: (Unit.STORE, "w", "r", "-", "-"),
    Opcode.MATMUL: (Unit.MATMUL, "-", "r", "w", "r"),
    Opcode.ACTIVATE: (Unit.ACTIVATE, "-", "w", "r", "-"),
    Opcode.POOL: (Unit.ACTIVATE, "-", "w", "r", "-"),
    Opcode.SOFTMAX: (Unit.ACTIVATE, "-", "w", "r", "-"),
    Opcode.MULTIPLY: (Unit.ACTIVATE, "-", "rw", "r", "-"),
    Opcode.LOAD_TABLE: (Unit.ACTIVATE, "-", "r", "-", "-"),
}


#: Cycles of a check: the extents of a MATMUL take seven products, those of a POOL five, those of a SOFTMAX two.
CYCLES = {opcode: 3 for opcode in Opcode} | {Opcode.MATMUL: 12, Opcode.POOL: 10, Opcode.SOFTMAX: 7, Opcode.MULTIPLY: 4}


class Decoder(wiring.Component):
    """Checks one instruction at a time, for :data:`CYCLES`. What it hands on stands in registers, so the next instruction is
    checked while this one waits for its place.

    In this order: an instruction that could not be read (BUS_READ); a reserved bit, an unknown opcode or function, a wrong
    count of lanes (ILLEGAL); a count of 0 (LENGTH); a place outside a memory of the chip or a region, a beat that is not
    aligned, a STORE to a region that may not be written, the end of region MODEL (ADDRESS). The first that fails raises
    `fault` for ever once what came before it is handed on; nothing comes out of it, nor of what follows a HALT.

    Parameters
    ----------
    config : Config
        The core's configuration.

    Members
    -------
    bases, sizes : of the regions, in order.
    fault, cause : the instruction at `pc` is not to be executed.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__({
            "i": In(stream.Signature(instruction_layout())),
            "o": Out(stream.Signature(decoded_layout(config))),
            "bases": In(config.address_width).array(4), "sizes": In(32).array(4),
            "fault": Out(1), "cause": Out(Fault), "pc": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        word = Signal(256)
        views = {opcode: data.View(layout(opcode), word) for opcode in Opcode if exists(config, opcode)}
        opcode = word[:8]

        def one_of(*opcodes):
            return Cat(opcode == o.value for o in opcodes if exists(config, o)).any()

        # The fields that several opcodes share stand at the same place in all of them.
        transfer, matmul, activate = views[Opcode.LOAD], views[Opcode.MATMUL], views[Opcode.ACTIVATE]
        is_matmul = one_of(Opcode.MATMUL)
        is_transfer = one_of(Opcode.LOAD, Opcode.LOAD_BIAS, Opcode.LOAD_WEIGHTS, Opcode.STORE)
        is_bias = one_of(Opcode.LOAD_BIAS)
        binary32 = activate.format == Format.BINARY32.value

        legal, counts_hold = Signal(), Signal()
        checked_legal, checked_counts = Signal(), Signal()
        with m.Switch(opcode):
            for o, view in views.items():
                with m.Case(o.value):
                    reserved = Cat(view[name] for name, _ in layout(o) if name.startswith("_"))
                    m.d.comb += [
                        legal.eq(~reserved.any()),
                        counts_hold.eq(Cat(view[name].any() for name, _ in FIELDS[o] if name in _COUNTS).all()),
                    ]
                    fields = dict(FIELDS[o])
                    known = Const(1)
                    if "function" in fields:
                        known = Cat(view["function"] == f.value for f in Function if exists(config, f)).any()
                    if "lanes" in fields:
                        m.d.comb += legal.eq(~reserved.any() & known & (view["lanes"] != 0) & (view["lanes"] <= config.n))

        # Last places, inclusive, wide enough for every instruction word; `host_end` is the first byte behind.
        last_buffer, last_acc, last_bias = (Signal(36, name=f"last_{name}") for name in ("buffer", "acc", "bias"))
        words_end = Signal(17)        # in rows of the table
        host_end = Signal(48)
        vector_shift = exact_log2(config.vector_bytes)
        byte_shift = Signal(range(vector_shift + exact_log2(config.n) + 1))
        m.d.comb += byte_shift.eq(vector_shift)
        with m.If(is_bias):
            m.d.comb += byte_shift.eq(vector_shift + 1)
        with m.If(one_of(Opcode.LOAD_WEIGHTS)):
            m.d.comb += byte_shift.eq(vector_shift + exact_log2(config.n))

        # MATMUL, POOL, SOFTMAX: one multiplier, a product a cycle; (count - 1) * stride, and rows0 * rows1.
        products = {Opcode.MATMUL: [
            (matmul.rows0, matmul.rows1, last_acc),
            *((matmul[count], matmul[f"{count}_stride"], last_buffer) for count in ("rows0", "rows1", "tiles0", "tiles1")),
            *((matmul[count], matmul[f"{count}_acc_stride"], last_acc) for count in ("tiles0", "tiles1")),
        ]}
        if config.pooling:
            pool = views[Opcode.POOL]
            products[Opcode.POOL] = [
                (pool.rows1, pool.buffer_stride, last_buffer),
                *((pool[count], pool[f"{count}_stride"], last_acc) for count in ("rows0", "rows1", "window0", "window1")),
            ]
        if config.softmax:
            softmax = views[Opcode.SOFTMAX]
            products[Opcode.SOFTMAX] = [
                (softmax.tiles, softmax.buffer_stride, last_buffer), (softmax.tiles, softmax.acc_stride, last_acc)]
        left, right, product = (Signal(width, name=name, reset_less=True) for name, width in (
            ("left", 16), ("right", 16), ("product", 32)))
        rows = Signal(32)
        step = Signal(len(products[Opcode.MATMUL]) + 2)      # one bit of it
        factors, less = (Signal(16), Signal(16)), Signal()
        m.d.comb += less.eq(~is_matmul | ~step[0])
        m.d.sync += [left.eq(factors[0] - less), right.eq(factors[1]), product.eq(left * right)]

        region = Signal(2)
        base, size = Signal(config.address_width), Signal(32)
        writable = Array([int(REGION_WRITABLE[r]) for r in Region])
        spans_hold = Signal()
        m.d.sync += [base.eq(Array(self.bases)[region]), size.eq(Array(self.sizes)[region])]
        m.d.comb += [
            region.eq(transfer.region),
            spans_hold.eq(
                (last_buffer < config.unified_buffer_depth)
                & (last_acc < config.accumulator_depth)
                & (last_bias < config.bias_depth)
                & self._table_holds(one_of, views, words_end)
                & (~is_transfer | ((host_end <= size)
                                   & ~(base | transfer.offset)[:exact_log2(config.bus_bytes)].any()
                                   & (~one_of(Opcode.STORE) | writable[region])))),
        ]

        behind = Signal()       # MULTIPLY: the operand lies behind the result
        given = Signal(decoded_layout(config))
        self._describe(m, given, opcode, region, base, rows, last_buffer, last_acc, last_bias, host_end, behind, views)
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.FSM(name="decode"):
            with m.State("FETCH"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.d.sync += [word.eq(self.i.p.word), self.pc.eq(self.i.p.pc)]
                    with m.If(self.i.p.overrun):
                        m.d.sync += self.cause.eq(Fault.ADDRESS)
                        m.next = "FAULT"
                    with m.Elif(self.i.p.failed):
                        m.d.sync += self.cause.eq(Fault.BUS_READ)
                        m.next = "FAULT"
                    with m.Else():
                        m.next = "CHECK"

            with m.State("CHECK"):
                m.d.sync += [
                    step.eq(1),
                    last_buffer.eq(0),
                    last_acc.eq(0),
                    last_bias.eq(0),
                    host_end.eq(transfer.offset + (transfer.rows << byte_shift)),
                ]
                m.next = "SPANS"
                with m.If(one_of(Opcode.ACTIVATE, Opcode.POOL, Opcode.SOFTMAX, Opcode.LOAD_TABLE)):
                    m.d.sync += last_buffer.eq(activate.buffer + (activate.rows << binary32) - 1)
                with m.If(one_of(Opcode.ACTIVATE, Opcode.SOFTMAX, Opcode.MULTIPLY)):
                    m.d.sync += last_acc.eq(activate.acc + activate.rows - 1)
                with m.If(one_of(Opcode.LOAD, Opcode.STORE)):
                    m.d.sync += last_buffer.eq(transfer.buffer + transfer.rows - 1)
                with m.If(is_bias):
                    m.d.sync += last_bias.eq(views[Opcode.LOAD_BIAS].bias + transfer.rows - 1)
                with m.If(is_matmul):
                    m.d.sync += [last_buffer.eq(matmul.buffer), last_acc.eq(matmul.acc - 1)]
                    with m.If(matmul.start):
                        m.d.sync += last_bias.eq(matmul.bias + matmul.tiles0 - 1)
                    m.next = "MULTIPLY"
                if config.pooling:
                    with m.If(one_of(Opcode.POOL)):
                        m.d.sync += last_acc.eq(pool.acc)
                        m.next = "MULTIPLY"
                if config.softmax:
                    with m.If(one_of(Opcode.SOFTMAX)):
                        m.next = "MULTIPLY"
                if config.table_lanes:
                    table, vectors = views[Opcode.LOAD_TABLE], views[Opcode.MULTIPLY]
                    m.d.sync += [
                        words_end.eq((table.word >> exact_log2(config.n)) + table.rows),
                        behind.eq(vectors.operand > vectors.buffer),
                    ]
                    with m.If(one_of(Opcode.MULTIPLY)):
                        m.next = "HULL"
                m.d.sync += [checked_legal.eq(legal), checked_counts.eq(counts_hold)]

            with m.State("MULTIPLY"):
                # Operands in step i, product in i + 1, sum in i + 2.
                m.d.sync += step.eq(step << 1)
                for o, terms in products.items():
                    with m.If(one_of(o) | (len(products) == 1)):
                        for side, factor in enumerate(factors):
                            chosen = (Mux(step[i], term[side], 0) for i, term in enumerate(terms))
                            m.d.comb += factor.eq(functools.reduce(operator.or_, chosen))
                        for i, (_, _, total) in enumerate(terms):
                            with m.If(step[i + 2]):
                                m.d.sync += total.eq(total + product)
                        with m.If(step[len(terms) + 1]):
                            m.next = "SPANS"
                with m.If(step[2]):
                    m.d.sync += rows.eq(product)

            if config.table_lanes:
                with m.State("HULL"):
                    m.d.sync += last_buffer.eq(Mux(behind, vectors.operand, vectors.buffer) + vectors.rows - 1)
                    m.next = "SPANS"

            with m.State("SPANS"):
                with m.If(~self.o.valid):
                    m.d.sync += self.o.payload.eq(given)
                    m.next = "FAULT"
                    with m.If(~checked_legal):
                        m.d.sync += self.cause.eq(Fault.ILLEGAL)
                    with m.Elif(~checked_counts):
                        m.d.sync += self.cause.eq(Fault.LENGTH)
                    with m.Elif(~spans_hold):
                        m.d.sync += self.cause.eq(Fault.ADDRESS)
                    with m.Else():
                        m.d.sync += self.o.valid.eq(1)
                        m.next = "FETCH"
                        with m.If(given.halt):
                            m.next = "END"

            with m.State("END"):
                pass  # nothing more is taken, so that no further instructions are fetched

            with m.State("FAULT"):
                m.d.comb += self.fault.eq(~self.o.valid)
        return m

    def _table_holds(self, one_of, views, words_end):
        """Whether the words of a LOAD_TABLE exist."""
        if not self.config.table_lanes:
            return Const(1)
        start = views[Opcode.LOAD_TABLE].word[:exact_log2(self.config.n)]
        return ~one_of(Opcode.LOAD_TABLE) | ((words_end <= TABLE_WORDS // self.config.n) & (start == 0))

    def _describe(self, m, o, opcode, region, base, rows, last_buffer, last_acc, last_bias, host_end, behind, views):
        """Drive `o` from the instruction word and the last places."""
        config = self.config
        transfer, matmul, activate = views[Opcode.LOAD], views[Opcode.MATMUL], views[Opcode.ACTIVATE]

        m.d.comb += o.halt.eq(opcode == Opcode.HALT.value)
        with m.Switch(opcode):
            for code in views:
                with m.Case(code.value):
                    unit, *uses = _USES[code]
                    m.d.comb += o.footprint.unit.eq(unit)
                    for space, use in zip(("host", "buffer", "acc", "bias"), uses):
                        m.d.comb += [
                            o.footprint[space].reads.eq("r" in use),
                            o.footprint[space].writes.eq("w" in use),
                        ]
                    if code is Opcode.MATMUL:
                        m.d.comb += o.footprint.bias.reads.eq(matmul.start)
                    fields = dict(FIELDS[code])
                    for space in ("buffer", "acc", "bias"):
                        if space in fields:
                            m.d.comb += o.footprint[space].first.eq(views[code][space])
                    if code is Opcode.MULTIPLY:
                        # One span has to do for what is read and what is written.
                        m.d.comb += o.footprint.buffer.first.eq(Mux(behind, views[code].buffer, views[code].operand))
        m.d.comb += [
            o.footprint.region.eq(region),
            o.footprint.host.first.eq(transfer.offset),
            o.footprint.host.last.eq(host_end - 1),
            o.footprint.buffer.last.eq(last_buffer),
            o.footprint.acc.last.eq(last_acc),
            o.footprint.bias.last.eq(last_bias),

            o.transfer.address.eq(base + transfer.offset),
            o.transfer.vectors.eq(transfer.rows),
            o.transfer.row.eq(transfer.buffer),
            o.transfer.bias.eq(0),
            *(o.matmul[name].eq(matmul[name]) for name, _ in FIELDS[Opcode.MATMUL] if not name.startswith("_")),
            o.matmul.rows.eq(rows),
            o.activate.function.eq(activate.function),
            o.activate.format.eq(activate.format),
            o.activate.rows.eq(activate.rows),
            o.activate.lanes.eq(activate.lanes),
            o.activate.row.eq(activate.buffer),
            o.activate.acc.eq(activate.acc),
        ]
        if config.pooling:
            pool = views[Opcode.POOL]
            counts = {"left0": pool.rows0, "left1": pool.rows1, "across": pool.window0, "down": pool.window1}
            m.d.comb += [
                *(o.activate[name].eq(1) for name in ("rows0_stride", "rows1", "window0", "window1")),
                o.activate.single.as_value().eq(-1),
                o.activate.single.left0.eq(pool.rows0 == 1),
            ]
            with m.If(opcode == Opcode.POOL.value):
                m.d.comb += [o.activate[name].eq(pool[name]) for name in (
                    "rows0_stride", "rows1", "rows1_stride", "buffer_stride",
                    "window0", "window0_stride", "window1", "window1_stride")]
                m.d.comb += [o.activate.single[name].eq(count == 1) for name, count in counts.items()]
        if config.softmax:
            softmax = views[Opcode.SOFTMAX]
            with m.If(opcode == Opcode.SOFTMAX.value):
                m.d.comb += [
                    o.activate.softmax.eq(1),
                    o.activate.rows1.eq(softmax.tiles),
                    o.activate.rows1_stride.eq(softmax.acc_stride),
                    o.activate.buffer_stride.eq(softmax.buffer_stride),
                ]
        if config.table_lanes:
            table, vectors = views[Opcode.LOAD_TABLE], views[Opcode.MULTIPLY]
            m.d.comb += [
                o.activate.operand.eq(vectors.operand),
                o.activate.word.eq(table.word >> exact_log2(config.n)),
                *(o.activate[name].eq(table[name]) for name in ("first", "linear_low", "linear_high")),
            ]
            with m.If(opcode == Opcode.MULTIPLY.value):
                m.d.comb += o.activate.task.eq(Task.MULTIPLY)
            with m.If(opcode == Opcode.LOAD_TABLE.value):
                m.d.comb += [o.activate.task.eq(Task.LOAD_TABLE), o.activate.operand.eq(table.buffer)]
        with m.If(opcode == Opcode.LOAD_BIAS.value):
            # A bias row is two vectors.
            m.d.comb += [
                o.transfer.vectors.eq(transfer.rows << 1),
                o.transfer.row.eq(views[Opcode.LOAD_BIAS].bias << 1),
                o.transfer.bias.eq(1),
            ]
        with m.If(opcode == Opcode.LOAD_WEIGHTS.value):
            m.d.comb += o.transfer.vectors.eq(transfer.rows << exact_log2(config.n))
        for operation in (o.transfer, o.matmul, o.activate):
            m.d.comb += operation.tag.pc.eq(self.pc)
