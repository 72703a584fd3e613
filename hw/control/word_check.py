"""The checks of an instruction that depend only on its word."""

from functools import reduce
from operator import and_

from amaranth import Cat, Const
from amaranth.utils import exact_log2

__all__ = ["check_word"]


def check_word(word):
    """Adds the logic for the checks of an :class:`.InstructionWord`, and returns their results.

    Returns
    -------
    legal : dict of Value
        By opcode; valid if the word has that opcode. 1 if the core supports all codes in the fields, no reserved bit is set, no
        two codes exclude each other, and `lanes` is from 1 to n.
    counts : dict of Value
        By opcode, like `legal`. 1 if no count is 0, no count exceeds its maximum in the core, and rows of tiles are whole tiles.
    """
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
        legal[opcode] = ~(word.bits & record.reserved).any() & codes & lanes
        counts[opcode] = Cat(*(view[name].any() for name in record.counts), *most, *whole).all()
    return legal, counts
