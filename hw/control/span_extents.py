"""The unit that computes the last rows that an instruction accesses in the on-chip memories, and checks their bounds.

The record of an instruction (:mod:`hw.spec.opcodes`) describes each range of rows as a :class:`hw.spec.instruction.Span`. The
last row of a span is its first row plus products of fields of the word: counts and strides of its loops.
"""

import functools
import operator

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.instruction import INSTRUCTION_WIDTH
from ..spec.isa import Format, space_depth, spaces_of
from ..spec.operations import matmul_layout
from ..spec.registers import MOST_CORES
from .instruction_word import InstructionWord, match_layout

__all__ = ["SpanExtents", "extent_cycles"]

#: Bits of a row address: enough for every instruction word.
_EXTENT_WIDTH = 36

#: Bits of a row address for contiguous rows without a product: the sum of a base and two counts.
_PLAIN_WIDTH = 18

#: Factor of a product: number of cores in the ring.
_CORES = "cores of the ring"

#: On-chip memories that instructions share, in all cores.
_SPACES = ("buffer", "acc", "bias")

#: Register for the second of two spans that are not alike. No instruction with such spans accesses bias rows.
_SPARE = "bias"


def _loops(record, span):
    """Returns the loops of a span: its own loops, the loop over its rows if the core has steps, and the loop over the cores of
    the ring."""
    around = ((_CORES, span.around[0]),) if span.around else ()
    return span.loops + (((span.rows[0], span.step),) if span.step in record.widths else ()) + around


def _are_alike(one, other):
    return one.rows == other.rows and not any((one.loops, other.loops, one.step, other.step))


def _places(record):
    """Yields `(name, span)` for each span whose last row must be computed from its fields. If a memory has two spans that are
    alike, both are excluded."""
    for space in (*_SPACES, "update"):
        spans = record.spans_of(space)
        if len(spans) == 1 or spans and not _are_alike(*spans):
            yield from zip((space, _SPARE), spans)


def _products(record):
    """Returns the products of an instruction as a list of `(field, field, name)`.

    The first products are the numbers of contiguous rows, for spans in which that number is a product. The products (rounds - 1)
    * stride of the loops follow.
    """
    together = [(*span.rows, name) for name, span in _places(record) if len(span.rows) == 2]
    return together + [(count, stride, name) for name, span in _places(record) for count, stride in _loops(record, span)]


def _has_product_of_rows(record):
    return any(len(span.rows) == 2 for span in record.spans)


def _pairs(record):
    """Returns the names of the memories with two spans: one for the rows that the instruction reads, one for the rows that it
    writes."""
    return [space for space in _SPACES if len(record.spans_of(space)) == 2]


def extent_cycles(record):
    """Returns the number of cycles from `start` until the last rows of an instruction are valid.

    It is one cycle, one more for each product, two more if there are products, and one more for each memory with two spans.
    """
    products = len(_products(record))
    return 1 + (products + 2 if products else 0) + len(_pairs(record))


class SpanExtents(wiring.Component):
    """Computes the last row that an instruction accesses in each memory. It uses one multiplier.

    Parameters
    ----------
    config : Config

    Members
    -------
    word : 256, in
    match : match_layout, in
        An instruction, and its decoded opcode. The instruction and the opcode are stable from the cycle of `start`.
    start : 1, in
    cores : 4, in
        Number of cores in the ring. Only in a core with a ring.
    more : 1, out
        The instruction takes more than one cycle.
    ends : 1, out
        This is the last of these cycles.
    last_<space> : 16, out
        Last row accessed in each memory of :func:`hw.spec.isa.spaces_of`; 0 without an access.
    behind : 1, out
        The second of two spans in the unified buffer begins after the first.
    rows : out
        Rows per pass of a MATMUL; valid if they are `inside`.
    inside : 1, out
        All these rows exist, and so do the rows of the function table.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__(
            {
                "word": In(INSTRUCTION_WIDTH),
                "match": In(match_layout(config)),
                "start": In(1),
                **({"cores": In(range(MOST_CORES + 1))} if config.ring else {}),
                "more": Out(1),
                "ends": Out(1),
                **{f"last_{space}": Out(16) for space in spaces_of(config)},
                "behind": Out(1),
                "rows": Out(matmul_layout(config)["rows"].shape),
                "inside": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        word = InstructionWord(self.config, self.word, self.match)
        places = {opcode: dict(_places(record)) for opcode, record in word.records.items()}
        ranked = [  # their spans are compared in the last cycle
            opcode for opcode, spans in places.items() if any(span.space != name for name, span in spans.items())
        ]
        last = {space: Signal(_EXTENT_WIDTH, name=f"last_{space}") for space in spaces_of(self.config)}
        m.d.comb += [getattr(self, f"last_{space}").eq(row) for space, row in last.items()]
        m.d.comb += self.inside.eq(
            Cat(row < space_depth(self.config, space) for space, row in last.items()).all() & self._table_holds(m, word)
        )

        products = {opcode: terms for opcode, record in word.records.items() if (terms := _products(record))}
        step = Signal(max(map(len, products.values())) + 2)  # one-hot, over the products
        following = Mux(self.start, word.one_of(*products), step << 1)
        second = Signal()  # the later of two spans
        multiplied = {opcode: word.one_of(opcode) & step[len(terms) + 1] for opcode, terms in products.items()}
        alike = self.start & word.where(lambda record: _pairs(record) and not _products(record))
        m.d.sync += [
            step.eq(following),
            # `step` may still hold a bit of the previous word when the next word starts.
            second.eq(functools.reduce(operator.or_, (multiplied[opcode] & ~self.start for opcode in ranked), alike)),
        ]
        m.d.comb += [
            self.more.eq(word.where(lambda record: _products(record) or _pairs(record))),
            self.ends.eq(second | Cat(now for opcode, now in multiplied.items() if opcode not in ranked).any()),
        ]
        for opcode, record in word.records.items():
            for space in _pairs(record):
                one, other = record.spans_of(space)
                with m.If(word.one_of(opcode)):
                    m.d.sync += self.behind.eq(word[opcode][other.base] > word[opcode][one.base])
        product = self._multiply(m, word, products, step, following)
        with m.If(self.start):
            for name, row in last.items():
                m.d.sync += row.eq(0)
                self._begin(m, word, {opcode: spans[name] for opcode, spans in places.items() if name in spans}, row)
        with m.Elif(second):
            self._take_later(m, word, last)
        with m.Else():
            # Only cores with `attention` share the enables, so that the Verilog of other cores stays the same.
            if self.config.attention:
                self._add_shared(m, word, products, places, step, last, product)
            else:
                for opcode, terms in products.items():
                    with m.If(word.one_of(opcode)):
                        for i, (_, _, name) in enumerate(terms):
                            with m.If(step[i + 2]):
                                m.d.sync += last[name].eq(last[name] + product)
        return m

    def _add_shared(self, m, word, products, places, step, last, product):
        """Adds the logic that adds a product to the row addresses that need it. Opcodes with the same addition share its
        enable."""
        adds = {name: [] for name in last}
        for opcode, terms in products.items():
            for i, (_, _, name) in enumerate(terms):
                adds[name].append(word.one_of(opcode) & step[i + 2])
            for name, span in places[opcode].items():
                if (slides := self._slides(word, opcode, span)) is not None:
                    ready = step[[term[:2] for term in terms].index(span.slide[1]) + 2]
                    adds[name].append(word.one_of(opcode) & slides & ready)
        for name, row in last.items():
            with m.If(Cat(adds[name]).any()):
                m.d.sync += row.eq(row + product)

    def _slides(self, word, opcode, span):
        """Returns a value that is 1 if the word repeats a span, each time one row later."""
        if span.slide is None or span.slide[0] not in word.records[opcode].widths:
            return None
        return word[opcode][span.slide[0]] & (word[opcode][span.only_if] if span.only_if else 1)

    def _begin(self, m, word, spans, last):
        """Adds the logic that computes, for each opcode, the last of the contiguous rows at the beginning of each span.

        Opcodes with the same fields at the same bits of the word share an adder.
        """
        groups = {}
        for opcode, span in spans.items():
            bits = {field.name: field.first for field in word.records[opcode].fields}
            key = bits[span.base], *(bits[name] for name in span.rows), span.only_if, span.times
            groups.setdefault(key, {})[opcode] = span
        for group in groups.values():
            opcode, span = next(iter(group.items()))
            view = word[opcode]
            touched = view[span.only_if] if span.only_if else Const(1)
            slides = self._slides(word, opcode, span)
            with m.If(word.one_of(*group) & touched):
                if not span.rows:
                    m.d.sync += last.eq(view[span.base])
                elif len(span.rows) == 2:  # the product is added later
                    m.d.sync += last.eq(view[span.base] - 1)
                elif slides is not None:  # the product is added later if the span repeats
                    m.d.sync += last.eq(view[span.base] + view[span.rows[0]] - Mux(slides, 2, 1))
                else:  # negative only for 0 rows, which is a fault: the sign is dropped
                    m.d.sync += last.eq((view[span.base] + self._rows(word, group) - 1)[:_PLAIN_WIDTH])

    def _rows(self, word, group):
        """Returns the number of contiguous rows for a group of opcodes that have the same row field. If the field has a step, it
        is the number of rows of the first result."""
        opcode, span = next(iter(group.items()))
        rows = word[opcode][span.rows[0]]
        if span.times == 2:
            return rows << 1
        stepped = [code for code, other in group.items() if other.step in word.records[code].widths]
        tall = [code for code, other in group.items() if other.tall]
        if stepped and self.config.training:
            rows = Mux(word.apart, 1, rows)
        elif stepped:
            rows = Mux(word.one_of(*stepped) & word[stepped[0]][group[stepped[0]].step].any(), 1, rows)
        if tall and self.config.training:
            rows = rows << word.tall
        elif tall:
            format_ = word[tall[0]].format
            high = [format_ == code.value for code in Format if code.height == 2] if len(format_) > 1 else [format_]
            is_tall = functools.reduce(operator.or_, high)
            rows = rows << (is_tall if len(tall) == len(group) else word.one_of(*tall) & is_tall)
        return rows

    def _take_later(self, m, word, last):
        for opcode, record in word.records.items():
            for space in _pairs(record):
                one, other = record.spans_of(space)
                view = word[opcode]
                if _are_alike(one, other):
                    m.d.sync += last[space].eq(Mux(self.behind, view[other.base], view[one.base]) + view[one.rows[0]] - 1)
                else:
                    with m.If(word.one_of(opcode)):
                        # The later of both rows. It is out of bounds if either is.
                        one, other = last[space], last[_SPARE]
                        later, beyond = Mux(other[:16] > one[:16], other[:16], one[:16]), other[16:] | one[16:]
                        m.d.sync += [one.eq(Cat(later, beyond)), other.eq(0)]

    def _table_holds(self, m, word):
        """Returns the check of the function table, valid one cycle after `start`: the words exist, and the first word begins a
        row of n."""
        holds = Const(1)
        for opcode, record in word.records.items():
            for span in record.spans_of("table"):
                view, lanes, end = word[opcode], exact_log2(self.config.n), Signal(17)
                m.d.sync += end.eq((view[span.base] >> lanes) + view[span.rows[0]])
                holds = ~word.one_of(opcode) | ((end <= space_depth(self.config, "table")) & (view[span.base][:lanes] == 0))
        return holds

    def _multiply(self, m, word, products, step, following):
        """Adds the logic that computes one product per cycle. For operands in step i, the product is valid in step i + 1, and the
        sum after step i + 2.

        `following` is the value of `step` in the next cycle.
        """
        left, right, product = (
            Signal(width, name=name, reset_less=True) for name, width in (("left", 16), ("right", 16), ("product", 32))
        )
        factors, exact = (Signal(16), Signal(16)), Signal()
        m.d.comb += exact.eq(word.where(_has_product_of_rows) & step[0])
        m.d.sync += [left.eq(factors[0] - ~exact), right.eq(factors[1]), product.eq(left * right)]
        if self.config.attention:
            m.d.comb += [
                factor.eq(self._shared_factor(m, word, products, following, side)) for side, factor in enumerate(factors)
            ]
        else:
            for opcode, terms in products.items():
                with m.If(word.one_of(opcode)):
                    for side, factor in enumerate(factors):
                        chosen = (Mux(step[i], self._factor(word, opcode, term, side), 0) for i, term in enumerate(terms))
                        m.d.comb += factor.eq(functools.reduce(operator.or_, chosen))
        with m.If(step[2]):
            m.d.sync += self.rows.eq(product)
        return product

    def _shared_factor(self, m, word, products, following, side):
        """Returns one factor of the product in the current step; `side` selects the factor. Opcodes share one input of the
        multiplexer for fields at the same bits of the word.

        The select signals are computed one cycle ahead. Otherwise, the path from the opcode through the multiplexer into the
        multiplier would be the critical path of a small core.
        """
        uses = {}
        for opcode, terms in products.items():
            bits = {field.name: (field.first, field.width) for field in word.records[opcode].fields}
            for i, term in enumerate(terms):
                key = bits.get(term[side], (opcode, i))
                value = self.word[key[0] : sum(key)] if term[side] in bits else self._factor(word, opcode, term, side)
                uses.setdefault(key, (value, []))[1].append(word.one_of(opcode) & following[i])
        chosen = []
        for value, cases in uses.values():
            now = Signal(name="chosen", reset_less=True)
            m.d.sync += now.eq(Cat(cases).any())
            chosen.append(Mux(now, value, 0))
        return functools.reduce(operator.or_, chosen)

    def _factor(self, word, opcode, term, side):
        """Returns a factor of a product for one opcode. The number of cores in the ring counts as 1 if the segment belongs to one
        core."""
        if term[side] != _CORES:
            return word[opcode][term[side]]
        span = dict(_places(word.records[opcode]))[term[2]]
        return Mux(Cat(word[opcode].mode == code for code in span.around[1]).any(), self.cores, 1)
