"""The contents of the function table while a program runs. The table can hold several functions at the same time if they have few
binades."""

from itertools import product

from amaranth_tpu.hw.spec.isa import TABLE_WORDS

from ...golden.table_lookup import BINADES

__all__ = ["TableSlots", "slot_vectors"]

_BINADE_WORDS = TABLE_WORDS // (2 * BINADES)


def slot_vectors(n):
    """Returns the vectors of a slot for one sign."""
    return _BINADE_WORDS // n


class TableSlots:
    """The slots of the function table, one per binade of the memory. A slot holds one binade of one function, for both signs.

    Members
    -------
    selected : object or None
        Key of the function that TABLE computes.
    """

    def __init__(self):
        self.selected = None
        self._held: list = [None] * BINADES  # (key of a function, index of its binade)
        self._used, self._time = [0] * BINADES, 0

    def select(self, key, table, n):
        """Selects a function, and decides where its binades are stored. Returns `(base, runs)`: the first slot, and the vectors
        to load, as a list of `(first vector of the packed table, first word of the memory, number of vectors)`.

        Binades that are already in the memory are kept. Other binades overwrite the least recently used slots. If all binades of
        the function are already in the memory, one vector is loaded, as LOAD_TABLE also sets the function's settings.
        """
        self.selected, self._time = key, self._time + 1
        base = self.base(key, table)
        places = range(base, base + table.binades)
        missing = [place for place in places if self._held[place] != (key, place - base)]
        for place in places:
            self._held[place], self._used[place] = (key, place - base), self._time
        if not missing:
            return base, [(0, base * _BINADE_WORDS, 1)]
        return base, _runs(base, missing, table, n)

    def fill(self, key, table, n):
        """Decides which binade of a function is loaded before the function is selected: one whose slot no function has used.
        Returns the vectors to load, as :meth:`select` does. Returns no vectors if there is no such binade."""
        base = self.base(key, table)
        for place in range(base, base + table.binades):
            if self._held[place] is None:
                self._held[place] = key, place - base
                return _runs(base, [place], table, n)
        return []

    def has(self, key, table):
        """Returns True if the slots hold all binades of a function."""
        return self._cost(key, self.base(key, table), table.binades)[0] == 0

    def base(self, key, table):
        """Returns the first slot of a function: where the fewest binades are missing, and then the fewest others are lost."""
        return min(range(BINADES - table.binades + 1), key=lambda base: self._cost(key, base, table.binades))

    def _cost(self, key, base, binades):
        lost = [place for place in range(base, base + binades) if self._held[place] != (key, place - base)]
        return (
            len(lost),
            sum(self._held[place] is not None for place in lost),
            max((self._used[place] for place in lost), default=0),
        )


def _runs(base, places, table, n):
    runs, each = [], slot_vectors(n)
    for sign, place in product((0, 1), places):
        first, word = (sign * table.binades + place - base) * each, (sign * BINADES + place) * _BINADE_WORDS
        if runs and (first, word) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2] * n):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + each)
        else:
            runs.append((first, word, each))
    return runs
