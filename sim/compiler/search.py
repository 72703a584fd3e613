"""The search for the fastest tiling of a network. The timing model simulates candidates within a budget of array passes, and the
fastest is kept."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby, product
from math import inf

from amaranth_tpu.hw.cycles import result_cycles

from .codegen.generate import generate
from .codegen.scheduling import ordered, with_weights
from .codegen.tables_ahead import with_tables_ahead
from .memory.batching import Batched, lay_along_x
from .memory.layout import HostLayout, lay_out
from .program import CompileError
from .tiling.branch_runs import side_by_side
from .tiling.chunk_tiling import REFINEMENTS, RunPlan, chunk_sizes, plan_run, run_cost
from .tiling.overlap import APART, FAR_APART, IN_TURN, fit_together, groups_of
from .tiling.resident import with_residents
from .tiling.stage_tiling import NothingFits, plan_stage
from .tiling.weight_passes import count_passes
from .timing.model import ACTIVATE, MATMUL, estimate, simulate

__all__ = ["Choice", "Candidate", "Schedule", "Trials", "search"]

_SIMULATED_PASSES = 60_000  # search budget: passes, over all candidates, up to which schedules are compared by simulation
_OVERLAP_PASSES = 10_000  # passes up to which all overlapping stages are compared at once, with all samples
_PART_PASSES = 140_000  # passes, over all groups of stages, up to which groups are compared one by one, with few samples
_FEW = 8  # samples of this comparison

#: Divisors `(sums, vectors)`: a stage may use 1/sums of the accumulators, and the stages of a run 1/vectors of the unified
#: buffer.
_ALL = (1, 1)
_PARTS = ((2, 1), (4, 1), (1, 4))
_GAIN = 0.99  # a candidate with smaller jobs is preferred only if it takes at most this share of the cycles
_CANDIDATES = 8
_WAITING = 0.005  # share of cycles in which the array waits, below which the search stops
_SHARE = 4  # if other runs have fewer passes than this multiple of the runs with samples along x, all are simulated together
_REFINED = 2  # choices that are refined
_REFINING_PASSES = 20_000  # budget of passes for each of the refinements
_LONG = 20_000  # instructions from which a fast search orders them by estimated start times, in half of the time


@dataclass(frozen=True, eq=False)
class Choice:
    """One complete tiling of a network.

    Parameters
    ----------
    batched : Batched
    host : HostLayout
    runs : tuple of RunPlan
    eager : int
        Number of operand blocks that are loaded before the weights of the first block, at the start of the program.
    """

    batched: Batched
    host: HostLayout
    runs: tuple
    eager: int = 1

    @property
    def plans(self):
        """Returns the :class:`StagePlan` of each stage."""
        return [plan for run in self.runs for plan in run.plans]

    def kind(self, along_x):
        """Returns the runs whose results have samples along x, if `along_x` is True; otherwise the other runs."""
        return tuple(run for run in self.runs if self.batched.is_along_x(run.stages[0]) == along_x)

    def passes(self, along_x):
        """Returns the number of array passes in the runs that :meth:`kind` returns."""
        batched, total = self.batched, 0
        for run in self.kind(along_x):
            for number, plan in zip(run.stages, run.plans):
                stage = batched.stages[number]
                total += len(plan.rectangles(stage, batched)) * count_passes(stage, self.host.n)
        return total

    @property
    def compared(self):
        """Returns `(runs, passes)`: the runs that the search simulates to compare choices, and their array passes. Choices differ
        only in the runs with samples along x. The other runs are included unless they have most of the passes."""
        own, others = self.passes(True), self.passes(False)
        return (self.runs, own + others) if others < _SHARE * own else (self.kind(True), own)

    def changed(self, eager=None, **changes):
        """Returns a copy with another `eager`, `tail` or `first`. `tail` and `first` are changed in the runs with samples along
        x, `first` only in the run at the start of the program."""
        runs = tuple(
            replace(run, **changes)
            if self.batched.is_along_x(run.stages[0]) and (run is self.runs[0] or "first" not in changes)
            else run
            for run in self.runs
        )
        return replace(self, runs=runs, eager=self.eager if eager is None else eager)


class Trials:
    """Counts the schedules that a search has tried and plans to try.

    Parameters
    ----------
    progress : callable or None
        Called with `(done, total)` after each schedule.
    """

    def __init__(self, progress=None):
        self._progress, self._done, self._total = progress, 0, 0

    def of(self, items):
        """Yields items, and reports each as a tried schedule when the next one is requested."""
        items = list(items)
        self._total += len(items)
        for item in items:
            yield item
            self._done += 1
            if self._progress:
                self._progress(self._done, self._total)


class Candidate:
    """The instructions of some of a choice's runs, in the order in which they were generated.

    Parameters
    ----------
    choice : Choice
    runs : sequence of RunPlan
    config : Config
    fast : bool
        True to order many instructions by estimated start times.

    Members
    -------
    emitter : Emitter
    ops : list of Op
    groups : {(stage, first column tile, column tiles): first tile}, tiles
        Layout of the image of weights.
    cycles : int
        Cycles in which the array accepts rows.
    passes : int
        Number of passes of the array.
    """

    def __init__(self, choice, runs, config, fast=False):
        self.choice, self.runs, self.config, self.fast = choice, runs, config, fast
        self.emitter = generate(choice.batched, choice.host, runs, config)
        self.ops, self.groups = with_weights(self.emitter.ops)
        matmuls = [op for op in self.ops if op.unit == MATMUL]
        self.cycles = sum(op.passes * op.rows for op in matmuls)
        self.passes = sum(op.passes for op in matmuls)

    @property
    def content(self):
        """Returns a hash of the instructions and of their dependencies."""
        return hash(tuple((op.opcode, *op.fields.items(), *op.waits, op.stage) for op in self.ops))

    @cached_property
    def timeline(self):
        """Returns the ideal timeline: the start times of the instructions if dispatch cost no cycles. A fast search estimates
        them for long programs."""
        if self.fast and len(self.ops) > _LONG:
            return estimate(self.ops, self.config)
        return simulate(self.ops, self.config, ideal=True)

    def scheduled(self, eager, limit=None):
        """Returns the :class:`Schedule`. Returns None if the schedule takes `limit` cycles or more. `eager` : see
        :class:`Choice`."""
        if limit is not None and self.cycles >= limit:
            return None
        ops = ordered(self.ops, self.timeline, eager)
        timeline = simulate(ops, self.config, limit=limit)
        return timeline and Schedule(self, ops, timeline.cycles)


@dataclass(frozen=True, eq=False)
class Schedule:
    """The instructions of a candidate in their final order, and the cycles that they take."""

    candidate: Candidate
    ops: list
    cycles: int

    @property
    def waiting(self):
        """Returns the share of the cycles in which the array accepts no rows."""
        return 1 - self.candidate.cycles / self.cycles


def search(graph, variant, config, batch, *, fast=False, trials=None):
    """Searches for the fastest tiling. Returns its :class:`Choice` and its :class:`Schedule`. Raises CompileError if the smallest
    tiles of a stage do not fit.

    Parameters
    ----------
    graph, variant : Graph
        The graph before and after the passes of :data:`.MAPPING`.
    fast : bool
        True to take the first choice without comparing it with others.
    trials : Trials or None
    """
    laid, trials = partial(lay_along_x, graph, variant), trials or Trials()
    try:
        choice, best = (_first(laid, config, batch), None) if fast else _search(laid, config, batch, trials)
    except NothingFits as error:
        raise CompileError(error.reason(config)) from None
    if best is None or best.candidate.runs != choice.runs:
        for chosen in trials.of([choice]):
            best = Candidate(chosen, chosen.runs, config, fast).scheduled(chosen.eager)
    return choice, best


def _first(laid, config, batch):
    """Returns the :class:`Choice` with the lowest estimated cost, without any simulation. `laid(batch, rows)` returns the
    :class:`Batched` for chunks of `rows` samples."""
    batched = laid(batch, 1)
    overlaps = _overlaps(batched, lay_out(batched, config.n), config, config.accumulator_depth)
    return next(iter(_choices(laid, config, batch, overlaps)), None) or _choice(batched, config, overlaps)


def _search(laid, config, batch, trials):
    """Searches among all tilings of the network. Returns the fastest :class:`Choice` and its :class:`Schedule`. The schedule is
    None if there was only one choice. `laid(batch, rows)` returns the :class:`Batched` for chunks of `rows` samples."""
    batched = laid(batch, 1)
    overlaps = _best_overlap(batched, laid(min(batch, _FEW), 1), config, trials)
    choices = _choices(laid, config, batch, overlaps)
    return _best(choices, config, trials) if choices else (_choice(batched, config, overlaps), None)


def _choices(laid, config, batch, overlaps):
    """Returns the possible tilings of the network, each a :class:`Choice`, sorted by estimated cost. They differ in the tiling of
    the stages with samples along x; without such stages, the list is empty. `overlaps` are the runs of the other stages. Raises
    NothingFits if no tiling is possible."""
    choices, fault, batched = [], None, laid(batch, 1)
    along_x = any(map(batched.is_along_x, range(len(batched.stages))))
    for rows in chunk_sizes(config, batch) if along_x else ():
        batched = laid(batch, rows)
        for variant in range(4):
            try:
                choice = _choice(batched, config, overlaps, variant)
            except NothingFits as error:
                fault = error
                continue
            if all(choice.runs != other.runs for _, _, other in choices):
                cost = sum(run_cost(batched, run, config, choice.host.layouts) for run in choice.kind(True))
                choices.append((cost, len(choices), choice))
    if fault and not choices:
        raise fault
    return [choice for _, _, choice in sorted(choices, key=lambda entry: entry[:2])]


def _choice(batched, config, overlaps, variant=0):
    """Returns one tiling of the network, a :class:`Choice`. `overlaps` are the runs whose samples are not along x; the other
    stages are tiled with `variant`, see :func:`.plan_run`. Raises NothingFits."""
    host, runs = lay_out(batched, config.n), list(overlaps)
    space = config.unified_buffer_depth - host.zeros
    runs += [plan_run(batched, run, config, host.layouts, space, variant) for run in batched.runs(along_x=True)]
    homes = {name for run in runs for name in run.homes}
    return Choice(batched, lay_out(batched, config.n, homes), tuple(sorted(runs, key=lambda run: run.stages[0])))


# Overlapping stages


def _best_overlap(batched, few, config, trials):
    """Finds the fastest tiling, by simulation, of the stages whose samples are not along x. Returns its runs. It also tries
    tilings for a fraction of the memories: with smaller jobs, more stages fit into memory at the same time. `few` has the same
    stages for fewer samples."""
    host, depth = lay_out(batched, config.n), config.accumulator_depth
    usual = _overlaps(batched, host, config, depth)
    if not usual:
        return usual
    parts = {_ALL: usual}
    for sums, vectors in _PARTS:
        with suppress(NothingFits):
            parts[sums, vectors] = _overlaps(batched, host, config, depth // sums, vectors)
    branches = side_by_side(batched, host, config)
    cuts = {end for run in branches for end in (run.stages.start, run.stages.stop)}
    trial = {}
    for part, runs in parts.items():
        pieces, whole = _of_operators(batched, runs, cuts)
        resident = (with_residents(batched, run, config, host.layouts, host.zeros, depth // part[0]) for run in (*runs, *whole))
        trial[part] = [*runs, *filter(None, resident), *pieces]
    trial[_ALL] += branches
    joined = _joined(trial, parts[_ALL], few, config, trials)
    homes = {name for run in joined for name in run.homes}
    choices = [
        *(Choice(batched, host, runs) for runs in parts.values()),
        Choice(batched, lay_out(batched, config.n, homes), joined),
    ]
    ahead = with_tables_ahead(batched, joined, config, host.zeros, partial(_idle, few, config))
    choices += [replace(choices[-1], runs=ahead)] if ahead else []
    if choices[0].passes(False) > _OVERLAP_PASSES:
        return choices[-1].runs
    best: tuple = ()
    for choice in trials.of(choices):
        if all(choice.runs != other.runs for other in choices[: choices.index(choice)]):
            enough = 1 if choice in choices[:2] else _GAIN  # simulating many passes leaves less of the budget for later trials
            made = Candidate(choice, choice.runs, config).scheduled(choice.eager, best[0] * enough if best else None)
            best = (made.cycles, choice.runs) if made else best
    return best[1]


def _idle(few, config, run):
    """Returns the approximate number of cycles in which the activation unit is idle during a run, for few samples."""
    ops = Candidate(Choice(few, lay_out(few, config.n, run.homes), (run,)), (run,), config).ops
    busy = sum(result_cycles(config, op.opcode, op.fields)[0] for op in ops if op.unit == ACTIVATE)
    return estimate(ops, config).cycles - busy


def _of_operators(batched, runs, cuts):
    """Returns `(parts, whole)`, lists of runs around operators whose stages include a product, such as normalisations. `parts`
    are the given `runs`, cut at the ends of each such operator and before the stages `cuts`. `whole` has one run for each such
    operator, with all of its stages; these fit into memory at the same time only with resident tensors."""
    plans = {number: plan for run in runs for number, plan in zip(run.stages, run.plans)}
    whole, cuts = [], {*cuts}
    for _, group in groupby(enumerate(plans), lambda entry: (batched.stages[entry[1]].title, entry[1] - entry[0])):
        numbers = [number for _, number in group]
        if len(numbers) > 1 and any(batched.stages[number].times for number in numbers):
            whole.append(range(numbers[0], numbers[-1] + 1))
            cuts |= {numbers[0], numbers[-1] + 1}
    ends = [sorted({run.stages.start, run.stages.stop, *cuts.intersection(run.stages)}) for run in runs]
    parts = [range(*part) for some in ends if len(some) > 2 for part in zip(some, some[1:])]
    return [[RunPlan(part, tuple(plans[number] for number in part)) for part in some] for some in (parts, whole)]


def _joined(parts, usual, few, config, trials):
    """Combines the fastest runs of several tilings to one list of runs that covers all stages, and returns it. `parts` is
    `{(divisor of the accumulators, divisor of the buffer): runs}`; the runs `usual` cover all stages.

    Each run is simulated alone, with `APART`, `FAR_APART` and `IN_TURN`, until the budget is spent. Runs of equal branches are
    simulated only with `IN_TURN`. A simulation ends early if other runs cover the same stages in no more cycles.
    """
    left, seen, known = _PART_PASSES, [], set()
    tried: list[tuple[int, RunPlan]] = []
    runs = [
        (IN_TURN if run.branches > 1 else apart, run)
        for apart, part in product((APART, FAR_APART, IN_TURN), parts)
        for run in parts[part]
    ]
    for apart, run in trials.of(runs):
        run = replace(run, apart=apart) if len(run.stages) > 1 else run
        if run in seen:
            continue
        choice = Choice(few, lay_out(few, config.n, run.homes), (run,))
        left -= choice.passes(False)
        if left > 0 or run in usual:
            seen.append(run)
            candidate = Candidate(choice, (run,), config)
            if candidate.content in known:
                continue  # the same instructions as those of an earlier run
            known.add(candidate.content)
            cycles = _cycles_of(candidate, config, _least_cycles(tried, run.stages))
            tried += [(cycles, run)] if cycles else []
    best: list[tuple[float, tuple]] = [(0, ())]  # for the first stages: cycles and runs
    for number in range(len(few.stages)):
        ends = [
            (best[run.stages[0]][0] + cycles, (*best[run.stages[0]][1], run)) for cycles, run in tried if run.stages[-1] == number
        ]
        best.append(best[-1] if few.is_along_x(number) else min(ends, key=lambda end: end[0], default=(inf, ())))
    return best[-1][1]


def _cycles_of(candidate, config, limit):
    """Returns the cycles of a candidate. Returns None if they are `limit` or more."""
    if candidate.passes <= _SIMULATED_PASSES:
        schedule = candidate.scheduled(candidate.choice.eager, limit)
        return schedule and schedule.cycles
    cycles = estimate(candidate.ops, config).cycles
    return cycles if limit is None or cycles < limit else None


def _least_cycles(tried, stages):
    """Returns the fewest cycles of consecutive runs that cover the range `stages`; None if no runs do. `tried` is a list of
    (cycles, run)."""
    least = {stages.start: 0}
    for end in range(stages.start + 1, stages.stop + 1):
        ends = [least[run.stages.start] + cycles for cycles, run in tried if run.stages.stop == end and run.stages.start in least]
        if ends:
            least[end] = min(ends)
    return least.get(stages.stop)


def _overlaps(batched, host, config, depth, share=1):
    """Returns RunPlans that cover all stages whose samples are not along x, with as many stages per run as fit. They use `depth`
    accumulator rows per stage, and the first 1 / `share` of the unified buffer. Raises NothingFits."""
    end, runs = config.unified_buffer_depth // share, []
    space, fits = end - host.zeros, partial(fit_together, batched, config, host.zeros, end)
    for numbers in batched.runs(along_x=False):
        plans = [(number, plan_stage(batched, number, config, host.layouts, space, depth)) for number in numbers]
        for group in groups_of(plans, fits):
            runs.append(RunPlan(range(group[0][0], group[-1][0] + 1), tuple(plan for _, plan in group)))
    return tuple(runs)


# Chunks


def _best(choices, config, trials):
    """Returns the fastest of the most promising choices, and its schedule. Only the runs in which choices differ are simulated.
    Parameters of the program's start and end are then refined for the fastest choice, and for the fastest one before it, unless
    the array rarely waits."""
    choice, budget, fastest = choices[0], _SIMULATED_PASSES, []
    best: Schedule | None = None
    for trial in trials.of(choices[:_CANDIDATES]):
        runs, passes = trial.compared
        if passes <= budget and not (best and best.waiting < _WAITING):
            budget -= passes
            made = Candidate(trial, runs, config).scheduled(trial.eager, best and best.cycles)
            if made:
                choice, best = trial, made
                fastest.append(trial)
    for start in fastest[: -_REFINED - 1 : -1] if best and best.waiting >= _WAITING else ():
        refined = _refined(start, best, config, trials)
        choice, best = refined or (choice, best)
    return choice, best


def _refined(start, best, config, trials):
    """Refines the parameters of the program's start and end, one after the other, for the choice `start`. Returns the fastest
    choice and its schedule, or None if no schedule takes fewer cycles than the schedule `best`."""
    found = None
    for changes in REFINEMENTS:
        tried, candidate = [(start.runs, start.eager)], None
        unchanged = start
        for change in trials.of(changes[: _REFINING_PASSES // start.compared[1]]):
            trial = unchanged.changed(**change)
            if (trial.runs, trial.eager) in tried:
                continue
            if candidate is None or trial.runs != tried[-1][0]:
                candidate = Candidate(trial, trial.compared[0], config)
            tried.append((trial.runs, trial.eager))
            made = candidate.scheduled(trial.eager, best.cycles)
            if made:
                start, best = trial, made
                found = start, best
    return found
