"""The core's memories, and their division among the data of a program: the phases of `PHASES`."""

from ..errors import CompileError, too_small
from ..tuning import HELD_SHARE, RESULTS_SHARE, TABLE_PART, TURNING_SHARE, UPDATES_SHARE

__all__ = ["PHASES", "Memories", "Ring"]

#: {phase: (the phases after which it may begin, its division of the memories)}.
PHASES = {
    "whole": ((), "a quarter of the unified buffer for results, the others for operands"),
    "samples": (("whole",), "half of the unified buffer for results, which the next jobs of the same samples read"),
    "exchange": (("whole",), "half of the unified buffer for results, and for vectors that the cores of a ring exchange"),
    "steps": (("whole", "exchange"), "the same, for updates of several steps, whose sums have own rows between the steps"),
    "sides": (("whole", "exchange"), "a part of the rows for updates that begin while a job of samples is not complete"),
    "beside": (("sides", "beside"), "updates have begun, so jobs of samples leave them their rows for sums"),
    "updates": (("sides", "beside"), "all rows for operands and for sums are for updates"),
}


class Ring:
    """A circular allocator for rows of a memory. It returns consecutive ranges, and continues at the start of the rows when a
    range does not fit at the end. `kept` has `{key: (first row, rows)}` of the contents of all rings in the same memory.
    Allocated rows lose their contents."""

    def __init__(self, base, size, kept=None):
        self.base, self.size, self.next, self.kept = base, size, 0, {} if kept is None else kept

    def following(self, count):
        """Returns the first row of the next `count` rows."""
        return self.base + (self.next if self.next + count <= self.size else 0)

    def take(self, count, key=None):
        """Allocates `count` rows and returns the first. With a `key`, they are kept under this key."""
        assert count <= self.size
        place = self.following(count)
        self.next = place - self.base + count
        for one in [one for one, (first, rows) in self.kept.items() if first < place + count and place < first + rows]:
            del self.kept[one]
        if key is not None:
            self.kept[key] = place, count
        return place

    def has(self, key):
        """Returns True if contents are in this ring, and not in another one."""
        return key in self.kept and 0 <= self.kept[key][0] - self.base < self.size

    def place(self, keys, rows, load):
        """Returns the first rows of the vectors of `keys`, each of which has `rows` rows. Calls `load(index of the key, first
        row)` for vectors that are not in this buffer. All vectors of `keys` are in it together afterwards."""
        while missing := [index for index, key in enumerate(keys) if not self.has(key)]:
            place = self.take(len(missing) * rows)  # may forget others of these keys
            for index in missing:
                load(index, place)
                self.kept[keys[index]] = place, rows
                place += rows
        return [self.kept[key][0] for key in keys]


class Memories:
    """The memories of a core for one program. :meth:`enter` changes their division.

    Members
    -------
    phase : str
        Key of `PHASES`.
    kept : dict
        Vectors in the unified buffer: `{(name, tile, first row, rows, turned): (first row in the buffer, rows)}`.
    operands, results, passing : Ring
        `passing` is for operands of one sum. It is one of the others.
    exchanges : Ring
        Vectors that the cores of a ring exchange.
    sums, turning : Ring
        Rows of the accumulators: for sums, and for the transposition of operands.
    biases : Ring
        Bias rows. `biases.kept` has those that are loaded.
    upper, updates : Ring
        Bias rows whose lower halves are zeros, and rows of the update memory.
    zero_rows : int
        Number of bias rows, starting at row 0, that are zero.
    tables : Ring
        Rows of the unified buffer for two parts of function tables. Nothing else uses them, as a table may be loaded at any time.
    zeros, base : int
        Rows of zeros at the start of the unified buffer, and the first row after the tiles that always stay there.
    gathered : frozenset of str
        Names of the sums for which the cores of a ring gather weights.
    parts : int
        A job of samples has at most one of so many parts of the rows for sums that it could have otherwise, if the array is
        busier with it than the vector port.
    by_samples : bool
        True: each job has whole samples, or a part of one sample.
    most_rows : int
        Largest number of rows of a job of sums that read no windows. 0: any.
    is_step : bool
        False: the program is of a network, a step without state.
    lasting_rows : int or None
        Rows for sums that jobs of samples have once updates have begun, if the memories are divided.
    """

    def __init__(self, config, constants, cores=1):
        self.config, self.n, self.cores, self.phase, self.kept = config, config.n, cores, "whole", {}
        self.zero_rows = max(1, min(16, config.bias_depth // 8, config.weight_fifo_depth)) if constants.needs_zeros else 0
        left = config.bias_depth - self.zero_rows
        half = left // 2 if constants.has_upper_rows else left
        self.biases, self.upper = Ring(self.zero_rows, half), Ring(self.zero_rows + half, left - half)
        self.updates = Ring(0, config.update_depth)
        beyond = (one.geometry.period - one.geometry.positions for one in constants.lowered.read_beyond())
        self.zeros = max(beyond, default=1)
        self.base = self.zeros + self.n * len(constants.resident)
        depth = config.unified_buffer_depth
        self.tables = Ring(self.base, 2 * min(TABLE_PART, max(1, depth // 64)) * bool(constants.functions))
        self.base += self.tables.size
        if self.base + (4 * self.n if constants.resident else 4) > depth:
            raise CompileError(
                too_small(config, "unified_buffer_depth", self.base + 4 * self.n, "constants and operands of this step")
            )
        self._divide((depth - self.base) // RESULTS_SHARE)
        self.passing, self.exchanges = self.operands, Ring(depth, 0, self.kept)
        rows = 0 if config.transpose or not constants.turns else max(config.accumulator_depth // TURNING_SHARE, 2 * self.n)
        self.sums, self.turning = Ring(0, config.accumulator_depth - rows), Ring(config.accumulator_depth - rows, rows)
        self.gathered, self.parts, self.by_samples, self.lasting_rows = frozenset(), 1, False, None
        self.most_rows, self.is_step = 0, bool(constants.lowered.step.state)
        self._both, self._needed, self._held = list[tuple](), (0, 1, 0), None

    def enter(self, phase, **needs):
        """Divides the memories for a phase of `PHASES`. `needs` are the arguments of the phase's method."""
        before, _ = PHASES[phase]
        assert self.phase in before, f"{phase} after {self.phase}"
        self.phase = phase
        getattr(self, f"_{phase}")(**needs)

    def _divide(self, size, exchanged=0):
        """Leaves `size` rows of the unified buffer to results and, before these, to `exchanged` rows that cores exchange."""
        end = self.config.unified_buffer_depth - size
        self.operands, self.exchanges, self.results = (
            Ring(first, rows, self.kept)
            for first, rows in ((self.base, end - self.base), (end, exchanged), (end + exchanged, size - exchanged))
        )

    def _halve(self, needed):
        """Leaves half of the unified buffer to results and exchanges, or less if operands need `needed` rows."""
        rows, (least, each, count) = self.config.unified_buffer_depth - self.base, self._needed
        size = max(rows // RESULTS_SHARE, min(rows // 2, rows - max(needed, least)))
        most = 2 * size // 3
        self._divide(size, min(most, min(count, max(1, most // each)) * each))
        self.passing = self.results

    def _samples(self):
        self._divide((self.config.unified_buffer_depth - self.base) // 2)
        self.passing = self.results

    def _exchange(self, operands, exchanged, count):
        """Gives up to `count` times `exchanged` rows to exchanges. The transposed operands of gradients have `operands` rows
        each, and stay on the chip if they fit."""
        size = self.config.unified_buffer_depth - self.base
        self._needed = max((rows for rows in operands if rows <= size - size // RESULTS_SHARE), default=0), exchanged, count
        self._halve(0)

    def _steps(self, needed):
        """Leaves `needed` rows to operands, if possible."""
        self._halve(needed)
        rows = self.sums.size // (2 if self.gathered else HELD_SHARE)
        self._held, self.sums = Ring(0, rows), Ring(rows, self.sums.size - rows)

    def _sides(self):
        base, size, rows = self.base, self.operands.size, self.sums.size // UPDATES_SHARE
        others, self.lasting_rows = size // UPDATES_SHARE, self.sums.size - rows
        stores = Ring(base, size - others, self.kept), Ring(base + size - others, others, self.kept)
        self._both = [*zip(stores, (self.sums, Ring(self.lasting_rows, rows)), (self.parts, 1))]
        self.passing = self.results  # results do not stay on the chip while a job is not complete
        self.choose_side(False)

    def _beside(self):
        (store, _, parts), _ = self._both
        self._both[0] = store, Ring(0, self.lasting_rows), parts
        self.choose_side(False)

    def _updates(self):
        (store, *_), (other, others, _) = self._both
        self._both, self.lasting_rows = [], None
        self.operands = self.passing = Ring(store.base, store.size + other.size, self.kept)
        self.sums = Ring(0, others.base + others.size)

    def choose_side(self, updates):
        """Chooses the memories of updates, or of jobs of samples, if they are divided."""
        if self._both:
            self.operands, self.sums, self.parts = self._both[updates]

    def sums_of(self, sums):
        """Returns the rows of the accumulators for a :class:`.MatrixSum`."""
        return self._held if self._held and sums.steps > 1 else self.sums
