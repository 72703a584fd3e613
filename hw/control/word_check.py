"""The checks of an instruction that depend only on its word."""

from functools import reduce
from operator import and_

from amaranth import Cat, Const
from amaranth.utils import exact_log2

__all__ = ["check_word"]


def check_word(word, filled):
    """Adds the logic for the checks of an :class:`.InstructionWord`, and returns their results.

    Parameters
    ----------
    word : InstructionWord
    filled : Signal
        One bit for each byte of the word: the byte is not 0.

    Returns
    -------
    legal : dict of Value
        By opcode; valid if the word has that opcode. 1 if the core supports all codes in the fields, no reserved bit is set, no
        two codes exclude each other, and `lanes` is from 1 to n.
    counts : dict of Value
        By opcode, like `legal`. 1 if no count is 0, no count exceeds its maximum in the core, and rows of tiles are whole tiles.
    """

    def any_of(mask):
        """Returns a value that is 1 if a bit of the word is set at a 1 of `mask`."""
        whole = [byte for byte in range(len(filled)) if ~mask >> 8 * byte & 0xFF == 0]
        rest = mask & ~sum(0xFF << 8 * byte for byte in whole)
        return Cat(*(filled[byte] for byte in whole), *(bit for place, bit in enumerate(word.bits) if rest >> place & 1)).any()

    legal, counts = {}, {}
    for opcode, record in word.records.items():
        view = word[opcode]
        coded = [field for field in record.fields if field.codes and len(field.codes) < 1 << field.width]
        checks = [Cat(view[field.name] == code.value for code in field.codes).any() for field in coded]
        checks += [~Cat(view[name] == code.value for name, code in excluded).all() for excluded in record.excluded]
        codes, lanes = reduce(and_, checks or [Const(1)]), Const(1)
        if "lanes" in record.widths:
            lanes = (view.lanes != 0) & (view.lanes <= word.config.n)
        whole = []
        if record.tiled in record.widths:
            whole = [~view[record.tiled] | ~view.rows[: exact_log2(word.config.n)].any()]
        most = [view[field.name] <= getattr(word.config, field.most) for field in record.fields if field.most]
        count_masks = [(1 << field.width) - 1 << field.first for field in record.fields if field.name in record.counts]
        legal[opcode] = ~any_of(record.reserved) & codes & lanes
        counts[opcode] = Cat(*(any_of(mask) for mask in count_masks), *most, *whole).all()
    return legal, counts
