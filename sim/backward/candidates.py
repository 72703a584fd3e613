"""One candidate program of a training step: a division of the batch into chunks (micro-batches), and all instructions for this
division."""

from dataclasses import replace

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.codegen.generate import Overlap
from ..compiler.codegen.instructions import Ring
from ..compiler.search import overlapping_runs
from ..compiler.tiling.overlap import take_turns
from ..compiler.tiling.stage_tiling import NothingFits
from ..functions.derivatives import Derivative
from ..ir.inverse_root import InverseRoot
from ..ir.optimizers import Adam
from ..ir.tiles import tiles_of
from .chunks import Chunk, ChunkCode, kept_vectors
from .flattening import Mover
from .gradients import GradientCode
from .memory import StepMemory, blocks_of, trained_terms
from .pacing import USUAL
from .sharded_planes import ShardedPlanes
from .sharing import GATHERED_TOGETHER, Gatherer, bucket_rows
from .step_emitter import Constants, StepEmitter
from .terms import FixedTiles, ParameterTiles
from .transposed_gradients import TransposedGradient
from .updates import BUCKET_PARTS, IN_FLIGHT, places_of_sums, rows_in_flight, rows_of_factors, update_all

__all__ = ["StepCandidate"]

_TABLE_ROWS = 128  # vectors of the unified buffer through which function tables are loaded, if stages have functions by table


class StepCandidate:
    """A candidate program of a training step, with all of its instructions.

    Parameters
    ----------
    lowered : Lowered
    optimizer : Sgd or Adam
    config : Config
    batch : int
    starts : tuple of int
        First sample of each chunk, and the end of the last chunk.
    masked : Masked or None
    sharded : bool
        Divide the updates of weights among the cores of a ring; see :class:`sim.backward.memory.StepMemory`.
    resident : bool
        Keep all transposed gradients in the unified buffer, even if updates must then be computed in smaller blocks.
    paces : (Pace, Pace)
        Ways in which the spatial stages overlap, in the forward pass and in the backward pass.
    only : bool or None
        None: emit the whole step. Otherwise emit only the spatial stages, of the backward pass if True.
    in_flight : int
        Largest number of blocks whose updates are in flight.

    Members
    -------
    memory : StepMemory
    emitter : StepEmitter
        Emitter that holds all instructions.

    Raises
    ------
    NothingFits
        If the configuration is too small for this candidate.
    """

    def __init__(
        self,
        lowered,
        optimizer,
        config,
        batch,
        starts,
        masked=None,
        sharded=True,
        resident=False,
        paces=USUAL,
        only=None,
        in_flight=IN_FLIGHT[0],
    ):
        self.paces, self.starts, self.in_flight = paces, starts, in_flight
        self.resident, self.lowered, self.training, self.optimizer = resident, lowered, lowered.training, optimizer
        self.config, self.n, self.batch, self.cores = config, config.n, batch, lowered.cores
        self.memory = memory = StepMemory(lowered, optimizer, self.n, batch, starts, masked, sharded)
        self.chunks = [Chunk(samples, self.n) for samples in zip(starts, starts[1:])]
        self.gathered = Ring(4 * self.n, GATHERED_TOGETHER * self._gathered)
        functions = self._functions()
        table_rows = min(_TABLE_ROWS, config.unified_buffer_depth // 8) if functions else 0
        self.tables = Ring(4 * self.n + self.gathered.size, table_rows)
        self.constant_rows = self.tables.base + self.tables.size
        self.spare_rows = config.accumulator_depth // 4
        self._check_rows(accumulator_depth=(self.spare_rows, 4 * self.n))
        self._place()
        memory.keep(config.accumulator_depth - self.spare_rows)
        self.staging = []
        if self.cores > 1:
            rows = max(self.spare_rows, *(one.segment for one in self._shared), 0)
            self.staging = [memory.take(Region.SCRATCH, 2 * rows) for _ in range(in_flight)]
        values = {"identity": 1, "minus": -1, "ones": 1, **dict.fromkeys(optimizer.factors(1, batch * lowered.cores, 1))}
        if memory.masked:
            values["keep"] = masked.factor
        if isinstance(optimizer, Adam):
            functions += (InverseRoot(),)
        constants = Constants(self.n, values, 2 * config.bias_depth // 8, functions)
        self.emitter = StepEmitter(config, memory.sizes[Region.SCRATCH], constants, self.tables)
        self.emitter.cores = lowered.cores
        self._check_rows(bias_depth=(self.emitter.bias_ring.size // 3, 4 * self.n))
        self._enter_stages()
        if memory.sharded:
            self.emitter.images = Gatherer(self.emitter, self._shared, self.gathered)
        if only is None:
            self._emit()
        else:
            self._spatial(only)

    def _emit(self):
        """Emits the whole step, phase by phase."""
        self._spatial(False)
        mover = self._mover()
        for name in self.lowered.flattened:
            mover.flatten(name)
        self._forward_and_back()
        self._load_factors()
        self._flat_gradients()
        for name in self.lowered.returned:
            mover.put_back(name)
        self._spatial(True)
        self._spatial_gradients()

    def _check_rows(self, **found):
        """Raises NothingFits if a memory of the core is too small for updates of n rows at a time. `found` is {parameter of the
        configuration: (rows per update that its value allows, smallest sufficient value)}."""
        for name, (rows, needed) in found.items():
            if rows < self.n:
                raise NothingFits(name, needed, self.training.graph.stages[0].name)

    def _functions(self):
        """Returns the functions by table of all stages, and their derivatives."""
        used = dict.fromkeys(stage.function for stage in self.training.graph.stages if stage.function.is_table)
        return (*used, *map(Derivative, used))

    def _enter_stages(self):
        """Gives the emitter the weight tiles, biases and memory regions of the spatial stages, which are executed sample by
        sample."""
        emitter, memory = self.emitter, self.memory
        emitter.regions, emitter.flat_stages = memory.regions, len(self.lowered.stages)
        readers = {one.stage: one for one in self.training.gradients}
        for index, (stage, number, backward) in enumerate(self.lowered.stages):
            terms = []
            for place, term in enumerate(stage.terms):
                part = readers[number].terms[place] if backward and not term.fixed else None
                planes = (
                    memory.planes_of(*((part.stage, part.term) if part else (number, place))) if part or not backward else None
                )
                if planes is None:
                    terms.append(FixedTiles(emitter.constants, term))
                    continue
                inputs = term.weights.shape[3] if part else term.weights.shape[2]
                terms.append(ParameterTiles(planes, term.kernel, tiles_of(inputs, self.n), transposed=bool(part)))
            emitter.weights[index] = terms
            bias = None if backward else memory.planes_of(number, None)
            if bias:
                emitter.biases[index] = bias

    def _spatial(self, backward):
        """Emits the spatial stages, which have several positions per sample. If `backward` is True, emits the backward pass;
        otherwise emits the forward pass."""
        numbers = [index for index, one in enumerate(self.lowered.stages) if one[2] == backward]
        if not numbers:
            return
        batched, first = self.lowered.batched(self.batch), self.constant_rows
        config = replace(self.config, bias_depth=2 * self.emitter.zero_rows)
        pace = self.paces[backward]
        depth = config.accumulator_depth // pace.share
        runs = overlapping_runs(batched, numbers, config, self.memory.layouts, first, depth, True)
        for index, run in enumerate(runs):
            run = replace(run, apart=pace.apart)
            Overlap(self.emitter, batched, self.memory.host, run, first, index % 2 == 1, margins=False).generate()

    def _mover(self):
        """Returns the :class:`.Mover`, which copies tensors between the layouts of spatial and dense stages."""
        ring = Ring(self.constant_rows, self.config.unified_buffer_depth - self.constant_rows)
        return Mover(self.emitter, self.memory, ring, Ring(0, self.config.accumulator_depth))

    def _place(self):
        """Divides the unified buffer into constants, transposed gradients, tensors that chunks keep, and the rest.

        Two consecutive chunks have separate memory. Transposed gradients that do not fit into the buffer are stored in SCRATCH,
        and loaded again for each k tile. To avoid this, transposed gradients may take more than half of the buffer. They do not
        if updates would then have to be computed in smaller blocks.
        """
        depth, each = self.config.unified_buffer_depth, self._rows_in_flight
        for most, rows in ((depth * 5 // 8, self.spare_rows), (depth * 5 // 8 if self.resident else depth // 3, self.n)):
            self._place_transposed(most)
            least = max(self._place_chunks(), self.base + rows * each)
            if least <= depth:
                break
        else:
            raise NothingFits("unified_buffer_depth", least, self.training.graph.stages[0].name)
        for transposed in self.transposed.values():
            if transposed.place is None:
                if self.resident:
                    raise NothingFits("unified_buffer_depth", depth + 1, self.training.graph.stages[0].name)
                transposed.vector = self.memory.take(Region.SCRATCH, transposed.blocks * transposed.rows)

    def _place_transposed(self, most):
        """Allocates memory for transposed gradients below buffer address `most`, after the constants."""
        memory, self.transposed, self.base = self.memory, {}, self.constant_rows
        trained = {one.parameter.stage for one in memory.planes}
        for one in self.training.gradients:
            if one.stage in trained and one.stage in self.lowered.flat:
                self.transposed[one.name] = transposed = TransposedGradient(
                    memory.flat[one.name].tiles * self.n, -(-memory.batch // self.n), None
                )
                end = self.base + transposed.blocks * transposed.rows
                if end - self.gathered.size <= most:
                    transposed.place, self.base = self.base, end

    def _place_chunks(self):
        """Allocates the memory of chunks and of operands in transit. Returns the smallest sufficient depth of the unified
        buffer."""
        memory, depth, ends = self.memory, self.config.unified_buffer_depth, [self.base]
        for parity in (0, 1):
            rows = max((chunk.rows for chunk in self.chunks[parity::2]), default=0)
            ends.append(ends[-1] + kept_vectors(memory, rows))
        for index, chunk in enumerate(self.chunks):
            chunk.place = ends[index % 2]
        rows = 3 * max(chunk.rows for chunk in self.chunks)
        self.spare = Ring(ends[-1], self._spare)
        first = ends[-1] + self.spare.size
        others = max(rows, (depth - first) // 3) if self._others else 0
        self.others, self.operands = Ring(first, others), Ring(first + others, depth - first - others)
        return first + rows + (rows if self._others else 0)

    @property
    def _others(self):
        """Returns True if the circular buffer `others` is needed. It is needed if dense stages after the first must load
        operands from host memory, or if gradients are stored from the unified buffer."""
        lowered, stages = self.lowered, self.training.graph.stages
        there = {stages[number].output for number in lowered.flat}
        read = {term.source for number in lowered.flat[1:] for term in lowered.terms[number]}
        return bool(lowered.returned or self.memory.masks or read - there)

    @property
    def _gathered(self):
        """Returns the number of unified-buffer vectors needed to gather a k tile of divided weights: the whole tile, and the
        core's own segment. The largest k tile determines the number."""
        return max((bucket_rows(one, one.cores) + one.segment for one in self._shared), default=0)

    @property
    def _shared(self):
        return [one for one in self.memory.planes if isinstance(one, ShardedPlanes)]

    @property
    def _spare(self):
        """Returns the number of unified-buffer vectors for gradients that are transposed before they are stored to SCRATCH."""
        return 2 * max((one.rows for one in self.transposed.values() if one.place is None), default=0)

    def _forward_and_back(self):
        """Emits the forward and backward pass of all chunks. The first stage of each chunk is interleaved with the remaining
        stages and the backward pass of the previous chunk."""
        emitter, depth = self.emitter, self.config.accumulator_depth
        self.code = code = ChunkCode(
            emitter, self.memory, self.transposed, self.operands, self.others, self.spare, self._load_table
        )
        before = None
        for chunk in [*self.chunks, None]:
            if before is self.chunks[0]:
                self._load_rows()
            least = max(self.memory.logits.tiles * before.rows, depth // 4) if before else 0
            needed = code.least(chunk) if chunk else 0
            if least + needed > depth:
                raise NothingFits("accumulator_depth", least + needed, self.training.graph.stages[-1].name)
            code.share(min(depth - least, code.sums(chunk)) if chunk else 0)
            works = [code.begin(chunk)] if chunk else []
            works += [code.end(before)] if before else []
            self._take_turns(works, code)
            before = chunk

    def _load_rows(self):
        """Loads constant operands that are needed only after the first stage of the first chunk."""
        for place, (name, count) in enumerate((("identity", self.n), ("ones", 1))):
            self.emitter.load_rows(name, place * self.n, count)

    def _load_table(self):
        """Loads Adam's function table while the activation unit is idle, before the first chunk reads its first sums."""
        if isinstance(self.optimizer, Adam) and not self.tables.size:
            self.emitter.load_table(InverseRoot(), self.operands)

    def _take_turns(self, works, code):
        """Interleaves generators of instructions. The next generator to advance is the one with the fewest cycles of array work
        and waiting so far."""
        done = [0] * len(works)

        def measured(index, work):
            before = self.emitter.worked.total() + code.waited
            for _ in work:
                done[index] += self.emitter.worked.total() + code.waited - before
                yield
                before = self.emitter.worked.total() + code.waited

        take_turns([measured(index, work) for index, work in enumerate(works)], lambda index: done[index])

    def _load_factors(self):
        """Loads the factors of the updates as operands. Also loads Adam's function table, if other tables have replaced it."""
        if isinstance(self.optimizer, Adam) and self.tables.size:
            self.emitter.load_table(InverseRoot())
        for place, name in enumerate(rows_of_factors(self.optimizer)):
            self.emitter.load_rows(name, (2 + place) * self.n)

    def _flat_gradients(self):
        """Emits the gradients and the updates of the dense stages' parameters. The operands are the transposed gradients. The
        code uses the unified buffer after the transposed gradients."""
        streamed = max((one.rows * one.blocks for one in self.transposed.values() if one.place is None), default=0)
        space = self.config.unified_buffer_depth - self.base
        self._update(self.base, min(streamed, space // 2), "flat_parts", places_of_sums(self.optimizer))

    def _spatial_gradients(self):
        """Emits the gradients and the updates of the spatial stages' parameters."""
        planes = [self.memory.layouts[gradient] for _, gradient, _ in trained_terms(self.lowered)]
        if not planes:
            return
        rows = max(layout.tiles for layout in planes) * self.n
        each = max(blocks_of(layout) * layout.tiles for layout in planes) * self.n
        space = self.config.unified_buffer_depth - self.constant_rows
        self._update(self.constant_rows, min(3 * each, max(2 * rows, space // 2)), "spatial_parts")

    @property
    def _rows_in_flight(self):
        return rows_in_flight(self.optimizer, self.memory.planes, self.cores, self.in_flight)

    def _update(self, first, transposed, parts, places=1):
        """Emits gradients and updates of parameters, block by block. `parts` is the name of the :class:`.GradientCode` method
        that yields the blocks. The `transposed` vectors of the unified buffer starting at `first` are for transposed operands.
        `places` is the number of accumulator areas for the sums of updates."""
        emitter, depth = self.emitter, self.config.accumulator_depth
        rest = Ring(first + transposed, self.config.unified_buffer_depth - first - transposed)
        each = self._rows_in_flight
        most = min(self.spare_rows, emitter.bias_ring.size // 3, rest.size // each)
        self._check_rows(unified_buffer_depth=(most, first + transposed + each * self.n))
        spare = places * self.spare_rows
        acc, sums = Ring(0, spare), Ring(spare, depth - spare)
        ring = Ring(first, transposed)
        code = GradientCode(emitter, self.memory, self.code.terms, self.transposed, sums, acc, ring, most)
        staged = self.staging, BUCKET_PARTS * most, most // 2
        update_all(emitter, self.optimizer, getattr(code, parts)(), rest, acc, self.in_flight, *staged)
