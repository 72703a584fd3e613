"""One way to compile a step: the batch in these chunks, and everything that follows from it."""

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.instructions import Ring
from ..compiler.overlap import take_turns
from ..compiler.tiling import NothingFits
from .chunks import Chunk, ChunkCode, kept_vectors
from .gradients import GradientCode
from .memory import StepMemory
from .step_emitter import Constants, StepEmitter
from .turned import Turned
from .updates import rows_in_flight, update_all

__all__ = ["Draft"]


class Draft:
    """
    Parameters
    ----------
    training : TrainingGraph
    optimizer : Sgd or Adam
    config : Config
    batch : int
    starts : tuple of int
        First samples of the chunks, and the end.

    Members
    -------
    memory : StepMemory
    emitter : StepEmitter
        With all instructions.

    Raises
    ------
    NothingFits
    """

    def __init__(self, training, optimizer, config, batch, starts):
        self.training, self.optimizer, self.config, self.n = training, optimizer, config, config.n
        self.memory = memory = StepMemory(training, optimizer, self.n, batch, starts)
        names = ["identity", "minus", "ones", *optimizer.factors(1, batch, 1)]
        self.chunks = [Chunk(samples, self.n) for samples in zip(starts, starts[1:])]
        self._place()
        constants = Constants(self.n, names, 2 * config.bias_depth // 8)
        self.emitter = StepEmitter(config, memory.sizes[Region.SCRATCH], constants)
        self._forward_and_back()
        self._gradients()

    def _place(self):
        """Cuts the unified buffer: constants, gradients transposed, what chunks keep, and the rest. Where the batch is one chunk
        or two in turn, the places of the first one and of the second."""
        memory, depth = self.memory, self.config.unified_buffer_depth
        blocks, base = -(-memory.batch // self.n), 4 * self.n
        self.turned = {}
        trained = {one.parameter.stage for one in memory.planes}
        for one in self.training.gradients:
            if one.stage in trained:
                rows = memory.tensors[one.name].tiles * self.n
                self.turned[one.name] = turned = Turned(rows, blocks, None)
                if base + blocks * rows <= depth // 3:
                    turned.place = base
                    base += blocks * rows
                else:
                    turned.vector = memory.take_scratch(blocks * rows)
        ends, self.base = [base], base
        for parity in (0, 1):
            rows = max((chunk.rows for chunk in self.chunks[parity::2]), default=0)
            ends.append(ends[-1] + kept_vectors(memory, rows))
        for index, chunk in enumerate(self.chunks):
            chunk.place = ends[index % 2]
        least = ends[-1] + self._spare + max(chunk.rows for chunk in self.chunks)
        if least > depth:
            raise NothingFits("unified_buffer_depth", least, self.training.graph.stages[0].name)
        self.spare = Ring(ends[-1], self._spare)
        first = ends[-1] + self.spare.size
        self.operands = Ring(first, depth - first)

    @property
    def _spare(self):
        """Vectors for what is transposed on its way to SCRATCH."""
        return 2 * max((one.rows for one in self.turned.values() if one.place is None), default=0)

    def _forward_and_back(self):
        """All chunks: the first stage of one while the one before goes through the others and back."""
        emitter, depth = self.emitter, self.config.accumulator_depth
        code = ChunkCode(emitter, self.memory, self.turned, self.operands, self.spare)
        before = None
        for chunk in [*self.chunks, None]:
            if before is self.chunks[0]:
                for place, (name, count) in enumerate((("identity", self.n), ("ones", 1))):
                    emitter.load_rows(name, place * self.n, count)
            least = max(self.memory.logits.tiles * before.rows, depth // 4) if before else 0
            most = depth - least if chunk else 0
            if chunk and most < chunk.rows:
                raise NothingFits("accumulator_depth", least + chunk.rows, self.training.graph.stages[-1].name)
            code.share(min(most, code.sums(chunk)) if chunk else 0)
            works = [code.begin(chunk)] if chunk else []
            works += [code.end(before)] if before else []
            self._take_turns(works, code)
            before = chunk

    def _take_turns(self, works, code):
        """Runs generators side by side, the one next that has made the fewest cycles of work for the array or waits for it."""
        done = [0] * len(works)

        def measured(index, work):
            before = self.emitter.worked.total() + code.waited
            for _ in work:
                done[index] += self.emitter.worked.total() + code.waited - before
                yield
                before = self.emitter.worked.total() + code.waited

        take_turns([measured(index, work) for index, work in enumerate(works)], lambda index: done[index])

    def _gradients(self):
        """Gradients of parameters, and their updates."""
        emitter, config = self.emitter, self.config
        for place, name in enumerate(("momentum", "decay")):
            emitter.load_rows(name, (2 + place) * self.n)
        space = config.unified_buffer_depth - self.base
        streamed = max((one.rows * one.blocks for one in self.turned.values() if one.place is None), default=0)
        ring = Ring(self.base, min(streamed, space // 2))
        most = min(config.accumulator_depth // 4, emitter.biases.size // 3, (space - ring.size) // rows_in_flight(self.optimizer))
        if most < self.n:
            raise NothingFits("unified_buffer_depth", 0, "")
        acc = Ring(0, config.accumulator_depth)
        code = GradientCode(emitter, self.memory, self.turned, acc, ring, most)
        update_all(emitter, self.optimizer, code.parts(), Ring(self.base + ring.size, space - ring.size), acc)
