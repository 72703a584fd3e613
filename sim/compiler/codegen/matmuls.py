"""Emission of the MATMUL instructions of a group of column tiles."""

from itertools import accumulate, groupby
from operator import itemgetter

from amaranth_tpu.hw.spec.isa import Opcode

__all__ = ["Group"]


def _loops(places):
    """Splits a list of operand addresses, one per pass, into nested loops. Yields `(first, count0, stride0, count1, stride1)` for
    each MATMUL; loop 0 is the inner loop."""
    position = 0
    while position < len(places):
        rest = places[position:]
        count = _steps(rest)
        stride = rest[1] - rest[0] if count > 1 else 0
        starts = rest[::count]
        outer = 1
        while (
            outer < len(starts)
            and starts[outer] - starts[outer - 1] == starts[1] - starts[0] >= 0
            and rest[outer * count : (outer + 1) * count] == [starts[outer] + i * stride for i in range(count)]
        ):
            outer += 1
        yield rest[0], count, stride, outer, starts[1] - starts[0] if outer > 1 else 0
        position += count * outer


def _steps(places):
    """Returns the length of the longest prefix of `places` that is an arithmetic progression with a step of at least 0."""
    count = 1
    while count < len(places) and places[count] - places[count - 1] == places[1] - places[0] >= 0:
        count += 1
    return count


class Group:
    """Emits the MATMULs of a group: column tiles whose passes alternate. `done` counts the emitted passes of each column tile.

    Parameters
    ----------
    column, count : int
        First column tile, and number of column tiles.
    acc, sums : int
        First accumulator row of the group, and accumulator rows per column tile.
    passes : int
        Number of passes of each column tile.
    parts : sequence of (first row, rows)
        Ranges into which the rows of sums are split for passes with index `whole` or more.
    bias_rows : sequence of int or None
        First row of the bias memory for each column tile, if each row of its sums has its own bias. Default: the emitter
        allocates and loads a row for each column tile.
    tiles : object or None
        Source of weights that are values of a tensor. `fit(passes, count)` returns the number of `passes` that one MATMUL may
        have; `bring(tiles)` emits the LOAD_WEIGHTS of the next tiles. None if the weights are constants: their LOAD_WEIGHTS are
        inserted later.
    loads : sequence of int or None
        Number of weight tiles that the array loads for each pass; see :func:`.loaded_tiles`. Default: one for each column tile.
    """

    def __init__(self, emitter, column, count, acc, sums, passes, parts, whole, *, bias_rows=None, tiles=None, loads=None):
        self.emitter, self.column, self.count, self.acc, self.sums = emitter, column, count, acc, sums
        self.passes, self.parts, self.whole, self.done = passes, parts, whole, 0
        self.bias_rows = bias_rows
        self.bias = None if bias_rows else emitter.bias(column, count)
        self.tiles, self.across = tiles, 0
        self.loads = loads or [count] * passes
        self.before = [0, *accumulate(self.loads)]  # tiles loaded before each pass

    def add(self, places, rows, across=0):
        """Emits passes whose operands start at the addresses `places`. `rows` are the two loops over the rows of a pass, (count,
        stride) each. `across` is the distance between the operands of two adjacent column tiles, in rows of the unified buffer;
        0 if all column tiles read the same operands. It is a generator: it yields False at points where jobs of other stages may
        be inserted."""
        self.across = across
        while places:
            together = self.tiles.fit(len(places), self.count) if self.tiles else len(places)
            yield from self._add(places[:together], rows)
            places = places[together:]

    def _add(self, places, rows):
        whole = max(0, self.whole - self.done)
        ahead = places[:whole]
        if self.done == 0 and ahead:
            self._emit((ahead[0], 1, 0, 1, 0), rows, start=1)
            ahead = ahead[1:]
        for some in self._stretches(ahead):
            for loops in self._loops(some):
                if self.loads[self.done]:  # else the array must keep its tile
                    yield False
                self._emit(loops, rows)
        for place in places[whole:]:
            self._in_parts(place, rows)

    def _stretches(self, places):
        """Splits passes into consecutive lists: passes that load all of their tiles, passes that load none, or a single pass."""
        for loads, some in groupby(zip(self.loads[self.done :], places), itemgetter(0)):
            stretch = [place for _, place in some]
            yield from [stretch] if loads in (0, self.count) else ([place] for place in stretch)

    def _loops(self, places):
        """Yields loops over passes, as :func:`_loops` does. With several column tiles, a MATMUL's inner loop is over the column
        tiles, so only its outer loop is over passes."""
        if self.count == 1:
            yield from _loops(places)
            return
        while places:
            steps = _steps(places)
            yield places[0], 1, 0, steps, places[1] - places[0] if steps > 1 else 0
            places = places[steps:]

    def _in_parts(self, place, rows):
        (outer, (_, stride)), start = rows, int(self.done == 0)
        for c in range(self.count):
            for begin, size in self.parts:
                self._matmul(
                    (place + begin * stride, 1, 0, 1, 0),
                    (outer, (size, stride)),
                    c,
                    1,
                    self.acc + c * self.sums + begin,
                    start,
                    keep=int(begin > 0 or c >= self.loads[self.done]),
                )
        self.done += 1

    def _emit(self, loops, rows, start=0):
        loads, columns = self.loads[self.done], [(0, self.count)]
        if start and self.bias_rows:
            columns = [(c, 1) for c in range(self.count)]
        elif 0 < loads < self.count:
            columns = [(0, loads), (loads, self.count - loads)]
        for c, count in columns:
            self._matmul(loops, rows, c, count, self.acc + c * self.sums, start, keep=int(c >= loads))
        self.done += loops[1] * loops[3]

    def _matmul(self, loops, rows, c, count, acc, start, keep=0):
        """Emits one MATMUL for `count` column tiles starting at index `c` of the group. `loops` are loops over passes, `rows`
        loops over the rows of a pass. `start` is 1 for the first pass, which begins with the bias. `keep` is 1 if the array
        keeps its tile of weights."""
        first, count0, stride0, count1, stride1 = loops
        (rows1, rows1_stride), (rows0, rows0_stride) = rows
        fields = {
            "start": start,
            "keep": keep,
            "buffer": first + c * self.across,
            "rows0": rows0,
            "rows0_stride": rows0_stride,
            "rows1": rows1,
            "rows1_stride": rows1_stride,
            "tiles1": count1,
            "tiles1_stride": stride1,
            "acc": acc,
            "bias": 0 if not start else self.bias_rows[c] if self.bias_rows else self.bias + c,
            "bias_rows": int(start and bool(self.bias_rows)),
            "tiles0": count if count > 1 else count0,
            "tiles0_stride": self.across if count > 1 else stride0,
            "tiles0_acc_stride": self.sums if count > 1 else 0,
            "tiles1_acc_stride": 0,
        }
        taken = 0 if keep else count0 * count1 * count
        if self.tiles and taken:
            self.tiles.bring(taken)
        put_in = taken and not self.tiles
        tiles = (self.emitter.stage, self.column, self.count, self.before[self.done] + c, taken) if put_in else None
        self.emitter.emit(Opcode.MATMUL, fields, tiles, self.before[-1])
