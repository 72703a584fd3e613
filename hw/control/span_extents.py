"""The last rows of the on-chip memories that an instruction touches, and whether they exist."""

import functools
import operator

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.instruction import INSTRUCTION_WIDTH
from ..spec.isa import Format, space_depth
from ..spec.operations import matmul_layout
from ..spec.registers import MOST_CORES
from .instruction_word import InstructionWord, match_layout

__all__ = ["SpanExtents", "extent_cycles"]

#: Bits of a row's number: enough for every instruction word.
_EXTENT_WIDTH = 36

#: The same of rows that lie together, without a product: the sum of a place and of two counts.
_PLAIN_WIDTH = 18

#: Factor of a product: the cores of the ring.
_CORES = "cores of the ring"

#: Memories on the chip that instructions share, as spans name them.
_SPACES = ("buffer", "acc", "bias")


#: Where the second of two spans is kept that are not alike: of what has such spans, none touches a bias row.
_SPARE = "bias"


def _loops(record, span):
    """Loops of a span, with that from one of its rows to the next, if the core has steps, and that over the cores of a ring."""
    around = ((_CORES, span.around[0]),) if span.around else ()
    return span.loops + (((span.rows[0], span.step),) if span.step in record.widths else ()) + around


def _are_alike(one, other):
    """Whether two spans have the same rows, which lie together."""
    return one.rows == other.rows and not any((one.loops, other.loops, one.step, other.step))


def _places(record):
    """`(name, span)` of those whose last rows are found from their fields; not of two that are alike."""
    for space in _SPACES:
        spans = record.spans_of(space)
        if len(spans) == 1 or spans and not _are_alike(*spans):
            yield from zip((space, _SPARE), spans)


def _products(record):
    """What has to be multiplied for an instruction, as `(field, field, name)`: first the rows of a span that lie together, where
    they are a product; then the (rounds - 1) * stride of each loop."""
    together = [(*span.rows, name) for name, span in _places(record) if len(span.rows) == 2]
    return together + [(count, stride, name) for name, span in _places(record) for count, stride in _loops(record, span)]


def _has_product_of_rows(record):
    return any(len(span.rows) == 2 for span in record.spans)


def _pairs(record):
    """Spaces with two spans: what the instruction reads, and what it writes."""
    return [space for space in _SPACES if len(record.spans_of(space)) == 2]


def extent_cycles(record):
    """Cycles from `start` on until the rows of an instruction stand: one; a product each, and two more; one more for the later of
    two spans."""
    products = len(_products(record))
    return 1 + (products + 2 if products else 0) + len(_pairs(record))


class SpanExtents(wiring.Component):
    """Finds the last row of each space, from the spans in an instruction's record, with one multiplier.

    Parameters
    ----------
    config : Config

    Members
    -------
    word : In(256), match : In(match_layout). An instruction, and which one it is. They stand still from `start` on.
    start : In(1).
    cores : In(4). Of the ring, in a core that can be in one.
    more : Out(1). The instruction takes more than one cycle. `ends` : Out(1). The last of these is now.
    last_<space> : Out(16) each, of the buffer, the accumulators (acc) and the biases; 0 where nothing is touched.
    behind : Out(1). Of two spans of the unified buffer, the second one lies behind the first.
    rows : Out. Of a MATMUL, rows of a pass, if they are `inside`.
    inside : Out(1). All these rows exist, and those of the function table.
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
                **{f"last_{space}": Out(16) for space in _SPACES},
                "behind": Out(1),
                "rows": Out(matmul_layout(config)["rows"].shape),
                "inside": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        word = InstructionWord(self.config, self.word, self.match)
        places = {opcode: dict(_places(record)) for opcode, record in word.records.items()}
        ranked = [  # their spans are compared in the end
            opcode for opcode, spans in places.items() if any(span.space != name for name, span in spans.items())
        ]
        last = {space: Signal(_EXTENT_WIDTH, name=f"last_{space}") for space in _SPACES}
        m.d.comb += [getattr(self, f"last_{space}").eq(last[space]) for space in _SPACES]
        m.d.comb += self.inside.eq(
            Cat(last[space] < space_depth(self.config, space) for space in _SPACES).all() & self._table_holds(m, word)
        )

        products = {opcode: terms for opcode, record in word.records.items() if (terms := _products(record))}
        step = Signal(max(map(len, products.values())) + 2)  # of the products; one bit of it
        following = Mux(self.start, word.one_of(*products), step << 1)
        second = Signal()  # the later of two spans
        multiplied = {opcode: word.one_of(opcode) & step[len(terms) + 1] for opcode, terms in products.items()}
        alike = self.start & word.where(lambda record: _pairs(record) and not _products(record))
        m.d.sync += [
            step.eq(following),
            # `step` may still hold a bit of the word before when the next one starts.
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
            # Other cores go without what is shared, so that not a letter of their text changes.
            if self.config.training:
                self._add_shared(m, word, products, places, step, last, product)
            else:
                for opcode, terms in products.items():
                    with m.If(word.one_of(opcode)):
                        for i, (_, _, name) in enumerate(terms):
                            with m.If(step[i + 2]):
                                m.d.sync += last[name].eq(last[name] + product)
        return m

    def _add_shared(self, m, word, products, places, step, last, product):
        """Adds the product where it belongs: opcodes share what says so."""
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
        """Whether a span is taken more than once, each time a row later; None if it never is."""
        if span.slide is None or span.slide[0] not in word.records[opcode].widths:
            return None
        return word[opcode][span.slide[0]] & (word[opcode][span.only_if] if span.only_if else 1)

    def _begin(self, m, word, spans, last):
        """The last row of those that lie together at the spans' beginnings, by opcode. Opcodes with the same fields at the same
        place share an adder."""
        groups = {}
        for opcode, span in spans.items():
            bits = {field.name: field.first for field in word.records[opcode].fields}
            key = bits[span.base], *(bits[name] for name in span.rows), span.only_if
            groups.setdefault(key, {})[opcode] = span
        for group in groups.values():
            opcode, span = next(iter(group.items()))
            view = word[opcode]
            touched = view[span.only_if] if span.only_if else Const(1)
            slides = self._slides(word, opcode, span)
            with m.If(word.one_of(*group) & touched):
                if not span.rows:
                    m.d.sync += last.eq(view[span.base])
                elif len(span.rows) == 2:  # the product follows
                    m.d.sync += last.eq(view[span.base] - 1)
                elif slides is not None:  # here it may follow
                    m.d.sync += last.eq(view[span.base] + view[span.rows[0]] - Mux(slides, 2, 1))
                else:  # of no meaning for 0 rows, so its sign is left away
                    m.d.sync += last.eq((view[span.base] + self._rows(word, group) - 1)[:_PLAIN_WIDTH])

    def _rows(self, word, group):
        """Rows that lie together, of opcodes with the same field for them: where they do not, those of the first result."""
        opcode, span = next(iter(group.items()))
        rows = word[opcode][span.rows[0]]
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
            rows = rows << (word.one_of(*tall) & functools.reduce(operator.or_, high))
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
                        # The later one, which is outside if either is.
                        one, other = last[space], last[_SPARE]
                        later, beyond = Mux(other[:16] > one[:16], other[:16], one[:16]), other[16:] | one[16:]
                        m.d.sync += [one.eq(Cat(later, beyond)), other.eq(0)]

    def _table_holds(self, m, word):
        """Whether the words of the function table exist that are touched, which begin a row of n; a cycle after `start`."""
        holds = Const(1)
        for opcode, record in word.records.items():
            for span in record.spans_of("table"):
                view, lanes, end = word[opcode], exact_log2(self.config.n), Signal(17)
                m.d.sync += end.eq((view[span.base] >> lanes) + view[span.rows[0]])
                holds = ~word.one_of(opcode) | ((end <= space_depth(self.config, "table")) & (view[span.base][:lanes] == 0))
        return holds

    def _multiply(self, m, word, products, step, following):
        """One product a cycle: operands in step i, product in i + 1, so that the sum stands behind i + 2. `following` will be
        `step` in the next cycle."""
        left, right, product = (
            Signal(width, name=name, reset_less=True) for name, width in (("left", 16), ("right", 16), ("product", 32))
        )
        factors, exact = (Signal(16), Signal(16)), Signal()
        m.d.comb += exact.eq(word.where(_has_product_of_rows) & step[0])
        m.d.sync += [left.eq(factors[0] - ~exact), right.eq(factors[1]), product.eq(left * right)]
        if self.config.training:
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
        """A factor of the present step, with fields at one place of the word taken once, whatever the opcodes. What chooses it is
        found a cycle ahead: from the opcode through the choice into the multiplier would be the longest path of a small core."""
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
        """A factor of a product; of the cores of a ring 1, where the segment is one core's."""
        if term[side] != _CORES:
            return word[opcode][term[side]]
        span = dict(_places(word.records[opcode]))[term[2]]
        return Mux(Cat(word[opcode].mode == code for code in span.around[1]).any(), self.cores, 1)
