"""An instruction word, seen as each of the instructions that the core has."""

from amaranth import Cat
from amaranth.lib import data

from ..spec.isa import layout, records

__all__ = ["InstructionWord"]


class InstructionWord:
    """Names for the bits of a word; no hardware of its own but comparisons of the opcode.

    Parameters
    ----------
    config : Config
    word : Signal
    """

    def __init__(self, config, word):
        self.config, self.bits, self.opcode = config, word, word[:8]
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
        return Cat(self.opcode == opcode.value for opcode in opcodes if opcode in self.records).any()

    def where(self, condition):
        """Whether the `condition` holds for the opcode's record."""
        return self.one_of(*(opcode for opcode, record in self.records.items() if condition(record)))
