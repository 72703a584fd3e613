"""Code generation: from tiled stages to instructions in order.

A job loads the operands of a rectangle of results into the unified buffer, accumulates the sums, and applies the activation
function. It writes the results to another area of the buffer: to the address where later stages read them, or to a staging area
from which they are stored. In a run with samples along x, a chunk of samples passes through all stages of the run before the next
chunk starts. The stages of other runs are interleaved. This order defines the values that the program computes.
:mod:`sim.compiler.codegen.scheduling` then reorders the instructions so that their execution overlaps.
"""

from itertools import groupby, product

from amaranth_tpu.hw.spec.isa import Opcode, Region

from ..tiling.overlap import sources_of, steps_of, sums_of, take_turns, vectors_of
from .emitter import StageEmitter
from .instructions import Ring
from .stage_code import StageCode
from .table_slots import slot_vectors
from .tables_ahead import table_of_later

__all__ = ["generate", "Overlap"]


def generate(batched, host, runs, config):
    """Generates all instructions of a program except LOAD_WEIGHTS and HALT. Returns the
    :class:`sim.compiler.codegen.emitter.StageEmitter` that has them.

    Parameters
    ----------
    batched : Batched
    host : HostLayout
    runs : sequence of RunPlan
        All runs of the program, or only the runs whose cycles the search compares.
    config : Config
    """
    emitter = StageEmitter(config, batched.stages, host)
    if host.zeros:
        emitter.load_zeros(0, host.zeros)
    along_x = [batched.is_along_x(run.stages[0]) for run in runs]
    for index, run in enumerate(runs):
        emitter.begin_run(run.stages)
        if along_x[index]:
            _take_chunks(emitter, batched, host, run, index == 0, run is runs[-1])
        else:
            behind = [*along_x[index + 1 :], True].index(
                True
            )  # overlapping runs before the next run along x alternate between both ends; the last has the upper end
            ahead = table_of_later(emitter.slots, batched, runs[index:]) if run.ahead else None
            Overlap(emitter, batched, host, run, host.zeros, behind % 2 == 1, ahead=ahead).generate()
    return emitter


def _take_chunks(emitter, batched, host, run, first, last):
    """Emits the instructions of a run with samples along x, chunk by chunk. `first` and `last` are True for the first and the
    last run of the program."""
    homes = {name: (host.zeros + place, samples) for name, (place, samples) in run.homes.items()}
    base, end = host.zeros + run.home_size, emitter.config.unified_buffer_depth - run.staging
    rings = Ring(base, end - base), Ring(end, run.staging), Ring(0, emitter.config.accumulator_depth)
    codes = [StageCode(emitter, batched, host.layouts, run, number, homes, *rings) for number in run.stages]
    for chunk in range(batched.chunks):
        for code in codes:
            emitter.stage = code.number
            code.prepare()
            begins, ends = chunk == 0 and code is codes[0], chunk + 1 == batched.chunks and code is codes[-1]
            for _ in code.job(code.rectangles[chunk], first=first and begins, last=last and ends):
                pass


class Overlap:
    """Generates the instructions of a run whose stages overlap: the jobs of all stages, interleaved.

    Parameters
    ----------
    emitter : Emitter
        Must have the methods of :class:`.StageEmitter` for stages.
    batched : Batched
    host : HostLayout
    run : RunPlan
    first : int
        First vector of the unified buffer that the run may use.
    low : bool
        True if the stages use the low end of the unified buffer; see :func:`sim.compiler.tiling.overlap.vectors_of`.
    ahead : (Function, list of Function) or None
        The function whose table is loaded ahead, if the run has slots `ahead`, and the functions that stay in the function table.
    """

    def __init__(self, emitter, batched, host, run, first, low, ahead=None):
        self.emitter, self.batched, self.host, self.run, self.zeroed = emitter, batched, host, run, set()
        self.codes, depth = [], emitter.config.unified_buffer_depth
        homes = {name: (first + place, samples) for name, (place, samples) in run.homes.items()}
        free, table_rows = first + run.home_size, 2 * slot_vectors(emitter.n) if run.ahead else 0
        vectors = vectors_of(run.plans[: len(run.branch)], free + table_rows, depth, low)
        self.table_loads = emitter.load_ahead(*ahead, Ring(free, table_rows)) if ahead else iter(())
        self.table_parts, self.loaded = 2 * run.ahead, 0
        for number, plan, (operands, place) in zip(run.branch, run.plans, vectors):
            rings = Ring(*operands), Ring(place, plan.slots * plan.staging), None
            self.codes.append(
                [
                    StageCode(emitter, batched, host.layouts, run, other, homes, *rings)
                    for other in range(number, run.stages.stop, len(run.branch))
                ]
            )

    def generate(self):
        for code, *_ in self.codes:
            self.emitter.stage = code.number
            code.prepare()
        stages, before, shared = [codes[0].stage for codes in self.codes], [], {}
        work = [self._work(codes) for codes in self.codes]
        jobs = [[code.turns(rectangle) for code, rectangle in own] for own in work]
        self.done, self.total = 0, sum(code.cycles([rectangle]) for own in work for code, rectangle in own)
        for step in steps_of(jobs, sources_of(stages, self.batched.tensors)):
            turns = [_by_code(work[index][job] for job in numbers) for index, numbers in step.items()]
            if before != list(step):
                self._divide_sums(step, turns)
            before = list(step)
            shared = shared if self.run.branches > 1 else {}
            for turn, numbers in zip(turns, step.values()):
                for code, _ in turn:
                    code.share(shared, len(numbers) == 1)
            take_turns([self._generate(turn) for turn in turns], self._progress(turns), self.run.apart)

    def _work(self, codes):
        """Returns the jobs of corresponding stages of all branches, (code, rectangle), in the order of their turns."""
        return sorted(((code, one) for code in codes for one in code.rectangles), key=lambda job: job[0].turns(job[1]))

    def _divide_sums(self, step, turns):
        """Divides the accumulators among the stages that have jobs in a step."""
        wanted = [(sum(code.work(some) for code, some in turn), turn[0][0].plan.sums) for turn in turns]
        for index, rows in zip(step, sums_of(wanted, self.emitter.config.accumulator_depth)):
            ring = Ring(*rows)
            for code in self.codes[index]:
                code.acc = ring

    def _progress(self, turns):
        """Returns a function for :func:`.take_turns`. The function maps the index of a turn to its progress, from 0 to 1: the
        share of its array cycles whose instructions have been emitted since this call."""
        worked = self.emitter.worked
        cycles = [sum(code.cycles(rectangles) for code, rectangles in turn) for turn in turns]
        begun = [sum(worked[code.number] for code, _ in turn) for turn in turns]
        return lambda turn: (sum(worked[code.number] for code, _ in turns[turn]) - begun[turn]) / cycles[turn]

    def _generate(self, turn):
        """Generates the jobs of a turn, a list of (code, rectangles). It is a generator: it yields at points where jobs of other
        stages may be inserted."""
        for code, rectangle in ((code, rectangle) for code, rectangles in turn for rectangle in rectangles):
            self.emitter.stage = code.number
            for is_break in code.job(rectangle):
                if is_break or code.acc.size >= 2 * code.plan.sums:
                    yield
                    self.emitter.stage = code.number
            self._zero_margins(code, rectangle.samples)
            self._zero_missing(code, rectangle)
            self.done += code.cycles([rectangle])
            self._load_tables(self.done / self.total)
            yield

    def _load_tables(self, progress):
        """Emits the loads of tables for later runs that are due when a share `progress` of the run's array cycles is done."""
        while self.loaded < progress * self.table_parts:
            self.loaded += 1
            next(self.table_loads, None)

    def _zero_missing(self, code, rectangle):
        """Stores zeros over the positions at the end of each sample that have no values."""
        layout, (height, width) = code.layout, code.layout.tensor.shape[:2]
        if layout.missing and rectangle.rows[1] == code.stage.result_size[0]:
            for sample, tile in product(range(*rectangle.samples), range(layout.tiles)):
                position = layout.position(sample, height - 1, tile, width - layout.missing)
                self._store_zeros(code.stage.output, position, layout.missing)

    def _store_zeros(self, name, position, count):
        zeros = self.host.zeros
        for first in range(0, count, zeros or 1):
            self.emitter.move(Opcode.STORE, name, position + first, 0, min(zeros, count - first))

    def _zero_margins(self, code, samples):
        """Stores the zero margins of some samples of an output tensor in SCRATCH. Does nothing for samples whose margins are
        already stored."""
        name, layout = code.stage.output, code.layout
        if name in self.run.homes or self.host.regions[name][0] is not Region.SCRATCH:
            return
        for sample in range(*samples):
            if (name, sample) in self.zeroed:
                continue
            self.zeroed.add((name, sample))
            widths = [
                layout.tensor.width if other.stage.reflow else other.plan.columns
                for other in (other for codes in self.codes for other in codes)
                if other.stage.output == name
            ]
            for position, count in layout.margins(sample, beside=min(widths) < layout.tensor.width):
                self._store_zeros(name, position, count)


def _by_code(jobs):
    """Groups consecutive jobs, (code, rectangle), of the same stage. Returns a list of (code, rectangles)."""
    return [(code, [rectangle for _, rectangle in some]) for code, some in groupby(jobs, lambda job: job[0])]
