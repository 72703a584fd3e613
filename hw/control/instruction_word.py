"""An instruction word, seen as each of the instructions that the core has."""

from functools import cache, reduce
from operator import or_

from amaranth import Cat, Mux
from amaranth.lib import data

from ..spec.isa import Format, layout, records

__all__ = ["InstructionWord", "match_layout", "match_word"]


@cache
def match_layout(config):
    """Which of the core's instructions a word is: a bit for each; none, if it has another opcode. With `training` also whether
    it is one that reads results, whether it writes two vectors for each row of them, and whether its rows lie apart."""
    shared = ("results", "tall", "apart") if config.training else ()
    return data.StructLayout({name: 1 for name in (*(opcode.name.lower() for opcode in records(config)), *shared)})


def match_word(config, bits):
    """The fields of :func:`match_layout` for a word, by name."""
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
    """Opcodes of the instructions that read results."""
    return tuple(code for code, record in records(config).items() if any(span.use == "r" for span in record.spans_of("acc")))


class InstructionWord:
    """Names for the bits of a word; no hardware of its own but choices by its opcode.

    Parameters
    ----------
    config : Config
    word : Signal
    match : View of match_layout
        What the word is, in registers beside it: from the opcode's bits it would be three levels of logic before everything.
    """

    def __init__(self, config, word, match):
        self.config, self.bits, self._match = config, word, match
        #: Opcode to its record, and to its view of the word.
        self.records = records(config)
        self._views = {opcode: data.View(layout(record), word) for opcode, record in self.records.items()}

    def __getitem__(self, opcode):
        return self._views[opcode]

    def half(self, opcode):
        """Whether a transfer moves half, by its word; None if it never does."""
        record = self.records[opcode]
        return self[opcode][record.transfer.half].any() if record.transfer.half in record.widths else None

    @property
    def tall(self):
        """With `training`: whether two vectors are written for each row of results."""
        return self._match.tall

    @property
    def apart(self):
        """With `training`: whether rows of results are not written one behind the other."""
        return self._match.apart

    def one_of(self, *opcodes):
        """Whether the word's opcode is one of these, of which the core need not have all."""
        if self.config.training and {*opcodes} == {*_results(self.config)}:
            return self._match.results
        return Cat(self._match[opcode.name.lower()] for opcode in opcodes if opcode in self.records).any()

    def where(self, condition):
        """Whether the `condition` holds for the opcode's record."""
        return self.one_of(*(opcode for opcode, record in self.records.items() if condition(record)))

    def choose(self, values):
        """The value of the word's opcode, of a dict; 0 for others."""
        return reduce(or_, (Mux(self.one_of(opcode), value, 0) for opcode, value in values.items()))
