"""The checks of an instruction that need nothing but its word."""

from amaranth import Cat, Const, Signal

from ..spec.isa import Function, exists

__all__ = ["check_word"]


def check_word(m, word):
    """Adds the checks of an :class:`.InstructionWord` to a module.

    Returns
    -------
    legal : Signal
        The core has the opcode and the function, no reserved bit is set, and `lanes` is 1 to n.
    counts : Signal
        No count is 0.
    """
    legal, counts = Signal(), Signal()
    with m.Switch(word.opcode):
        for opcode, record in word.records.items():
            view = word[opcode]
            function, lanes = Const(1), Const(1)
            if "function" in record.widths:
                function = Cat(view.function == code.value for code in Function if exists(word.config, code)).any()
            if "lanes" in record.widths:
                lanes = (view.lanes != 0) & (view.lanes <= word.config.n)
            with m.Case(opcode.value):
                m.d.comb += [
                    legal.eq(~(word.bits & record.reserved).any() & function & lanes),
                    counts.eq(Cat(view[name].any() for name in record.counts).all()),
                ]
    return legal, counts
