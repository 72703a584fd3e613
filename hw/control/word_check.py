"""The checks of an instruction that need nothing but its word."""

from amaranth import Cat, Const, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..spec.instruction import INSTRUCTION_WIDTH
from ..spec.isa import Function, exists
from .instruction_word import InstructionWord

__all__ = ["WordCheck"]


class WordCheck(wiring.Component):
    """Says in the same cycle whether a word is an instruction of this core.

    Parameters
    ----------
    config : Config

    Members
    -------
    word : In(256).
    legal : Out(1). The core has the opcode and the function, no reserved bit is set, and `lanes` is 1 to n.
    counts : Out(1). No count is 0.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__({"word": In(INSTRUCTION_WIDTH), "legal": Out(1), "counts": Out(1)})

    def elaborate(self, platform):
        m = Module()
        word = InstructionWord(self.config, self.word)
        with m.Switch(self.word[:8]):
            for opcode, record in word.records.items():
                view = word[opcode]
                function, lanes = Const(1), Const(1)
                if "function" in record.widths:
                    function = Cat(view.function == code.value for code in Function if exists(self.config, code)).any()
                if "lanes" in record.widths:
                    lanes = (view.lanes != 0) & (view.lanes <= self.config.n)
                with m.Case(opcode.value):
                    m.d.comb += [
                        self.legal.eq(~(self.word & record.reserved).any() & function & lanes),
                        self.counts.eq(Cat(view[name].any() for name in record.counts).all()),
                    ]
        return m
