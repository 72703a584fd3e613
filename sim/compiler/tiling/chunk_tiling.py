"""Tiling of runs with samples along x: chunks of the batch, groups of column tiles, and resident tensors.

A run with samples along x is a sequence of stages with one position per sample, such as dense layers. The samples of a chunk take
the place of positions; see :mod:`sim.compiler.memory.batching`.
"""

from dataclasses import dataclass, field

from amaranth_tpu.hw.spec.isa import TABLE_WORDS

from ...ir.tiles import tiles_of
from ..memory.batching import reads
from ..timing.model import turnaround
from .overlap import APART
from .stage_tiling import Job, NothingFits, StagePlan, blocks_of, can_alternate, group_cycles
from .weight_passes import loaded_tiles, passes_of

__all__ = ["RunPlan", "chunk_sizes", "plan_run", "run_cost", "REFINEMENTS"]

_BLOCK = 32  # tiles of a streamed block
_CAPS = ((8, 0.75), (4, 0.5), (8, 0.5), (2, 0.5))  # groups: most column tiles, and largest share of the remaining column tiles

#: Choices that affect the start and the end of a run, tried one after the other.
REFINEMENTS = (
    [
        {"first": first, "eager": eager}
        for first in ((1, 2, 4, 8, 16, 24), (1, 1, 2, 4, 8), (1, 2, 3, 4, 6, 8))
        for eager in (0, 1, 2)
    ],
    [{"tail": tail} for tail in (1, 2, 4)],
)


@dataclass(frozen=True)
class RunPlan:
    """The tiling of a run: a range of consecutive stages that are executed together.

    Parameters
    ----------
    stages : range
        Indices of the stages.
    plans : tuple of StagePlan
        Tiling of each stage.
    staging : int
        In a run with samples along x: vectors of the unified buffer that hold results before they are stored. In other runs, each
        stage has its own staging area.
    homes : dict of str to (int, int)
        Resident tensors: first row of each, counted after the zeros, and number of samples (or chunks) whose values fit there at
        the same time.
    home_size : int
        Buffer rows of all resident tensors.
    first : tuple of int
        Numbers of channel tiles in the first loads of the program.
    tail : int
        Number of parts into which the rows of the program's last results are split, so that their activation and stores start
        early.
    apart : float
        Time between overlapping stages; see :func:`sim.compiler.tiling.overlap.take_turns`.
    branches : int
        Number of equal branches in the run; see :mod:`sim.compiler.tiling.branches`. Corresponding stages have the same plan.
    ahead : int
        Number of slots of the function table that are filled for later runs; see :mod:`sim.compiler.codegen.tables_ahead`.
    """

    stages: range
    plans: tuple
    staging: int = 0
    homes: dict = field(default_factory=dict)
    home_size: int = 0
    first: tuple = (1, 2, 4, 8, 16, 24)
    tail: int = 1
    apart: float = APART
    branches: int = 1
    ahead: int = 0

    @property
    def branch(self):
        """Returns the range of the stages of the first branch."""
        return self.stages[: len(self.stages) // self.branches]

    def turns(self, number, samples, batch):
        """Returns the turns (first, end) in which stage `number` works on a range of samples. Without branches, a turn is a
        sample. Branches take turns: after each sample if no job has several samples, else after each batch."""
        branch = (number - self.stages.start) // len(self.branch)
        if all(plan.samples == 1 for plan in self.plans):
            first = samples[0] * self.branches + branch
            return first, first + 1
        return tuple(branch * batch + sample for sample in samples)


def chunk_sizes(config, batch):
    """Returns candidates for the number of samples per chunk: the whole batch, and equal divisions of it into chunks of about 1,
    2, 3, 4, 6, 8, 12 ... samples."""
    most = min(batch, config.accumulator_depth)
    wanted = [size for power in range(16) for size in (1 << power, 3 << power >> 1)] + [most]
    counts = sorted({-(-batch // size) for size in wanted if size <= most})
    return list(dict.fromkeys(-(-batch // count) for count in counts))


def _kept(batched, run):
    """Returns the live ranges `{tensor: (first, last stage)}` of the tensors that a run writes and that no other run reads."""
    life = {}
    for number in run:
        life.setdefault(batched.stages[number].output, [number, number])
    for number, stage in enumerate(batched.stages):
        for name in reads(stage) & life.keys():
            life[name] = [life[name][0], number] if number in run else [0, len(batched.stages)]
    life.pop(batched.graph.output, None)
    return {name: tuple(stages) for name, stages in life.items() if stages[1] in run}


def _homes(life, sizes):
    """Allocates resident tensors in the order of their live ranges, each at the lowest free address. Returns `{tensor: address}`
    and the number of rows used. `sizes` has the rows of each tensor."""
    places = {}
    for name in sorted(life, key=lambda name: life[name]):
        others = sorted(
            (places[other], places[other] + sizes[other])
            for other in places
            if life[other][0] <= life[name][1] and life[name][0] <= life[other][1]
        )
        at = 0
        for first, end in others:
            if at + sizes[name] <= first:
                break
            at = max(at, end)
        places[name] = at
    return places, max((places[name] + sizes[name] for name in places), default=0)


class _ChunkJob(Job):
    """The memory needs of one stage for one chunk, in vectors of the unified buffer.

    Members
    -------
    blocks : list of (int, tuple)
        Ways to split the sum into blocks: size of the largest block in vectors, and the blocks.
    whole, least : int
        Vectors of the operands if all are loaded at once, and in the smallest blocks.
    staged, wanted : int
        Vectors for staged results: the minimum, and the number that lets stores overlap with later results.
    """

    def __init__(self, batched, number, layouts, homes):
        super().__init__(batched, number, layouts, StagePlan(1, 1, batched.rows, (), (), 0, 1), homes)
        self.blocks = [(self.operands(blocks), blocks) for blocks in blocks_of(self.stage, layouts)]
        self.whole, self.least = self.blocks[0][0], min(self.blocks)[0]
        self.staged = 0 if self.stage.output in homes else self.held * self.width
        self.wanted = self.staged if self.stage.softmax else self.staged * max(2, min(4, self.tiles))

    def choose(self, room):
        """Returns the blocks for operand memory of `room` vectors: one block if all operands fit; else smaller blocks, so that
        three fit at the same time if possible, else two or one."""
        if self.whole <= room:
            return self.blocks[0][1]
        for slots in (3, 2, 1):
            for size, blocks in self.blocks[1:]:
                tiles = max(end - first for block in blocks for _, _, _, first, end in block)
                if slots * size <= room and (tiles <= _BLOCK or size == self.least):
                    return blocks
        raise AssertionError("the smallest block fits")


def _places(batched, run, layouts, space):
    """Allocates the unified buffer for a run. Returns `(homes, rows, staging, stages)`: the addresses and the total size of the
    resident tensors, the staging rows, and a :class:`_ChunkJob` per stage. All tensors are resident, or as many as fit: the
    largest are dropped first. Raises NothingFits."""
    life = _kept(batched, run)
    sizes = {name: layouts[name].sample for name in life}
    while True:
        homes, rows = _homes(life, sizes)
        stages = [_ChunkJob(batched, number, layouts, homes) for number in run]
        least, staged = max(one.least for one in stages), max(one.staged for one in stages)
        whole, left = max(one.whole for one in stages), space - rows
        for ring in dict.fromkeys((2 * whole if batched.chunks > 1 else whole, whole, least)):
            if ring + staged <= left:
                wanted = max(one.wanted for one in stages)
                return homes, rows, max(staged, min(wanted, (left - ring) // 2)), stages
        if not life:
            worst = max(zip(stages, run), key=lambda one: one[0].least + one[0].staged)
            raise NothingFits("unified_buffer_depth", least + staged, batched.stages[worst[1]].name)
        del life[max(life, key=lambda name: (sizes[name], name))]


def plan_run(batched, run, config, layouts, space, variant):
    """Returns the :class:`RunPlan` of a run for `space` vectors of the unified buffer. `variant` is the index in `_CAPS` of the
    limits for the size of groups. Raises NothingFits."""
    homes, rows, staging, stages = _places(batched, run, layouts, space)
    for one in stages:
        if one.held > config.accumulator_depth:
            raise NothingFits("accumulator_depth", one.held, one.stage.name)
    room, plans = space - rows - staging, []
    for one in stages:
        blocks = one.choose(room)
        alternate = not one.stage.softmax and can_alternate(one.stage, blocks, layouts)
        groups = _groups(one.stage, config, batched.rows, len(blocks) > 1, variant) if alternate else (1,) * one.tiles
        plans.append(StagePlan(1, 1, batched.rows, groups, blocks, 0, 1))
    homes = {name: (place, 1) for name, place in homes.items()}
    return RunPlan(run, tuple(plans), staging, homes, rows, tail=min(4, max(1, batched.rows // 8)))


def _groups(stage, config, rows, streamed, variant):
    """Returns the numbers of column tiles in each group of a stage. If operands are read again for each group (`streamed`), the
    groups are as large as possible. `variant` is an index in `_CAPS`."""
    columns, slots = tiles_of(stage.channels, config.n), config.accumulator_depth // rows
    shortest = config.n if all(loaded_tiles(stage, config.n, 0, 1)) else 2  # cycles of a pass over one row
    most = max(1, min(slots // 2 if slots > 1 else 1, config.bias_depth // 2, 65535))
    least = min(most, -(-turnaround(config) // max(rows, shortest)))
    cap, share = _CAPS[variant]
    return _taper(columns, most, most, 1) if streamed else _taper(columns, max(least, min(cap, most)), least, share)


def _taper(columns, cap, least, share):
    """Divides `columns` column tiles into groups and returns their sizes. A group has at most `cap` column tiles, and at most the
    share `share` of the remaining ones. Groups shrink towards the end, because the next stage waits for the last group. They have
    at least `least` column tiles if possible: alternating between these hides the latency of the accumulators."""
    groups = []
    while columns:
        size = min(columns, cap, max(least, -int(-columns * share // 1)))
        if 0 < columns - size < least and columns <= cap:
            size = columns
        groups.append(size)
        columns -= size
    return tuple(groups)


def run_cost(batched, plan, config, layouts):
    """Returns an estimate of a run's cycles: the larger of array and bus cycles, plus a fraction of the smaller."""
    compute = bus = functions = 0
    beats, n = config.beats_per_vector, config.n
    for number, part in zip(plan.stages, plan.plans):
        one, column = _ChunkJob(batched, number, layouts, plan.homes), 0
        for count in part.groups:
            passes = len(passes_of(one.stage, n, column))
            compute += passes * group_cycles(config, count, batched.rows) + 10
            bus += passes * count * n * beats
            if len(part.blocks) > 1:
                bus += one.whole * beats
                compute += len(part.blocks) * 8
            column += count
        bus += one.whole * beats if len(part.blocks) == 1 else 0
        functions += TABLE_WORDS if one.stage.function.is_table else 0
    chunks = batched.batch / batched.rows
    overlap = (
        1
        if chunks == 1
        or 2 * layouts[batched.stages[plan.stages[0]].terms[0].source].sample
        <= config.unified_buffer_depth - plan.home_size - plan.staging
        else 1.1
    )
    return ((max(compute, bus) + min(compute, bus) / 8) * overlap + 100 + functions) * chunks
