"""An instruction word, seen as each of the instructions that the core has."""

from functools import cache, reduce
from operator import or_

from amaranth import Cat, Mux
from amaranth.lib import data

from ..spec.isa import layout, records

__all__ = ["InstructionWord", "match_layout"]


@cache
def match_layout(config):
    """Which of the core's instructions a word is: a bit for each; none, if it has another opcode."""
    return data.StructLayout({opcode.name.lower(): 1 for opcode in records(config)})


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

    def one_of(self, *opcodes):
        """Whether the word's opcode is one of these, of which the core need not have all."""
        return Cat(self._match[opcode.name.lower()] for opcode in opcodes if opcode in self.records).any()

    def where(self, condition):
        """Whether the `condition` holds for the opcode's record."""
        return self.one_of(*(opcode for opcode, record in self.records.items() if condition(record)))

    def choose(self, values):
        """The value of the word's opcode, of a dict; 0 for others."""
        return reduce(or_, (Mux(self.one_of(opcode), value, 0) for opcode, value in values.items()))
