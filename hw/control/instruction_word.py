"""The fields of an instruction word, selected by the opcode."""

from functools import cache, reduce
from operator import or_

from amaranth import Cat, Mux
from amaranth.lib import data

from ..spec.isa import Format, layout, records

__all__ = ["InstructionWord", "match_layout", "match_word"]


@cache
def match_layout(config):
    """Returns the layout of a decoded opcode: one bit for each instruction of the core. All bits are 0 for an unknown opcode.

    With `training`, there are three more bits: `results`, the instruction reads results from the accumulators; `tall`, it writes
    two vectors for each row of results; `apart`, its rows are not contiguous.
    """
    shared = ("results", "tall", "apart") if config.training else ()
    return data.StructLayout({name: 1 for name in (*(opcode.name.lower() for opcode in records(config)), *shared)})


def match_word(config, bits):
    """Returns {name: value} of the fields of :func:`match_layout` for a 256-bit word."""
    match = {opcode: bits[:8] == opcode.value for opcode in records(config)}
    named = {opcode.name.lower(): now for opcode, now in match.items()}
    if not config.training:
        return named
    tall = (
        match[opcode] & (data.View(layout(record), bits).format == code.value)
        for opcode, record in records(config).items()
        for code in Format
        if code.height == 2 and any(span.tall for span in record.spans)
    )
    apart = (
        match[opcode] & data.View(layout(record), bits)[span.step].any()
        for opcode, record in records(config).items()
        for span in record.spans_of("buffer")
        if span.step in record.widths
    )
    results = (match[opcode] for opcode in _results(config))
    return named | {"results": Cat(results).any(), "tall": Cat(tall).any(), "apart": Cat(apart).any()}


@cache
def _results(config):
    return tuple(code for code, record in records(config).items() if any(span.use == "r" for span in record.spans_of("acc")))


class InstructionWord:
    """The fields of an instruction word. The only hardware of the class is multiplexers that the opcode selects.

    Parameters
    ----------
    config : Config
    word : Signal
    match : View of match_layout
        Decoded opcode, registered with the word. Decoding it from the bits would add three levels of logic to every path.
    """

    def __init__(self, config, word, match):
        self.config, self.bits, self._match = config, word, match
        #: Record of each opcode. `_views` has its view of the word.
        self.records = records(config)
        self._views = {opcode: data.View(layout(record), word) for opcode, record in self.records.items()}

    def __getitem__(self, opcode):
        return self._views[opcode]

    def half(self, opcode):
        """Returns a value that is 1 if the word transfers half the vectors. Returns None if `opcode` never does."""
        record = self.records[opcode]
        return self[opcode][record.transfer.half].any() if record.transfer.half in record.widths else None

    @property
    def tall(self):
        """Returns a value that is 1 if two vectors are written for each row of results. Only with `training`."""
        return self._match.tall

    @property
    def apart(self):
        """Returns a value that is 1 if rows of results are written with a stride. Only with `training`."""
        return self._match.apart

    def one_of(self, *opcodes):
        """Returns a value that is 1 if the opcode of the word is one of `opcodes`. Opcodes that the core lacks are ignored."""
        if self.config.training and {*opcodes} == {*_results(self.config)}:
            return self._match.results
        return Cat(self._match[opcode.name.lower()] for opcode in opcodes if opcode in self.records).any()

    def where(self, condition):
        """Returns a value that is 1 if `condition` holds for the :class:`hw.spec.instruction.Instruction` of the word's opcode.
        `condition` is a Python function of such a record."""
        return self.one_of(*(opcode for opcode, record in self.records.items() if condition(record)))

    def choose(self, values):
        """Returns the value in `values`, {opcode: value}, for the opcode of the word. Returns 0 if `values` does not have the
        opcode."""
        return reduce(or_, (Mux(self.one_of(opcode), value, 0) for opcode, value in values.items()))
