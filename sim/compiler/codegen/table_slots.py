"""Contents of the function table while a program runs: several functions with few binades are resident side by side."""

from itertools import product

from amaranth_tpu.hw.spec.isa import TABLE_WORDS

from ...golden.table_lookup import BINADES

__all__ = ["TableSlots"]

_BINADE_WORDS = TABLE_WORDS // (2 * BINADES)


class TableSlots:
    """The binades of the function table, each with the binade of a function that it holds for both signs.

    Members
    -------
    selected : object or None
        Key of the function that TABLE computes.
    """

    def __init__(self):
        self.selected = None
        self._held: list = [None] * BINADES  # (key, number of the function's binade)
        self._used, self._time = [0] * BINADES, 0

    def select(self, key, table, n):
        """Selects a function, and returns `(base, runs)`: its first binade in the memory, and the vectors that must be loaded, as
        `(first vector of the packed table, first word of the memory, vectors)`.

        The binades that the memory already holds are kept. Otherwise the least recently used ones are overwritten. A resident
        function that is not selected loads one vector: LOAD_TABLE also sets its settings.
        """
        self.selected, self._time = key, self._time + 1
        base = min(range(BINADES - table.binades + 1), key=lambda base: self._cost(key, base, table.binades))
        places = range(base, base + table.binades)
        missing = [place for place in places if self._held[place] != (key, place - base)]
        for place in places:
            self._held[place], self._used[place] = (key, place - base), self._time
        if not missing:
            return base, [(0, base * _BINADE_WORDS, 1)]
        runs, each = [], _BINADE_WORDS // n
        for sign, place in product((0, 1), missing):
            first, word = (sign * table.binades + place - base) * each, (sign * BINADES + place) * _BINADE_WORDS
            if runs and (first, word) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2] * n):
                runs[-1] = (*runs[-1][:2], runs[-1][2] + each)
            else:
                runs.append((first, word, each))
        return base, runs

    def _cost(self, key, base, binades):
        lost = [place for place in range(base, base + binades) if self._held[place] != (key, place - base)]
        return (
            len(lost),
            sum(self._held[place] is not None for place in lost),
            max((self._used[place] for place in lost), default=0),
        )
