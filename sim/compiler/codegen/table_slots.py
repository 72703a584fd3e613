"""The contents of the function table while a program runs. The table can hold several functions at the same time if they have few
binades."""

from itertools import product

from amaranth_tpu.hw.spec.isa import TABLE_SETTINGS, TABLE_WORDS

from ...golden.table_lookup import BINADES

__all__ = ["TableSlots"]

_BINADE_WORDS = TABLE_WORDS // (2 * BINADES)


class TableSlots:
    """The slots of the function table, one per binade of the memory. A slot holds one binade of one function, for both signs.

    Members
    -------
    selected : object or None
        Key of the function that TABLE computes.
    settings : dict
        Fields of LOAD_TABLE for this function.
    """

    def __init__(self, n):
        self.n, self.selected, self.settings = n, None, {}
        self._held: list = [None] * BINADES  # (key of a function, index of its binade)
        self._used, self._time = [0] * BINADES, 0

    def select(self, key, table):
        """Selects a function, and decides where its binades are stored. Returns the vectors to load, as a list of `(first vector
        of the packed table, first word of the memory, number of vectors)`.

        Binades that are already in the memory are kept. Other binades overwrite the least recently used slots. If all binades of
        another function are already in the memory, one vector is loaded, as LOAD_TABLE also sets the function's settings.
        """
        base = self._base(key, table)
        if key == self.selected and self._cost(key, base, table.binades)[0] == 0:
            return []
        self._set(key, table, base)
        self._time += 1
        places = range(base, base + table.binades)
        missing = [place for place in places if self._held[place] != (key, place - base)]
        for place in places:
            self._held[place], self._used[place] = (key, place - base), self._time
        if not missing:
            return [(0, base * _BINADE_WORDS, 1)]
        return _runs(base, missing, table, self.n)

    def fill(self, key, table):
        """Decides which binade of a function is loaded before the function is selected: one whose slot no function has used.
        Returns the vectors to load, as :meth:`select` does. Returns no vectors if there is no such binade."""
        base = self._base(key, table)
        if self.selected is None:  # LOAD_TABLE selects a function, too
            self._set(key, table, base)
        for place in range(base, base + table.binades):
            if self._held[place] is None:
                self._held[place] = key, place - base
                return _runs(base, [place], table, self.n)
        return []

    def _set(self, key, table, base):
        self.selected, self.settings = key, {name: getattr(table, name) for name in TABLE_SETTINGS} | {"base": base}

    def _base(self, key, table):
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
    runs, each = [], _BINADE_WORDS // n
    for sign, place in product((0, 1), places):
        first, word = (sign * table.binades + place - base) * each, (sign * BINADES + place) * _BINADE_WORDS
        if runs and (first, word) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2] * n):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + each)
        else:
            runs.append((first, word, each))
    return runs
