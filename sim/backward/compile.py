"""The backward compiler: training graph, optimizer, configuration and batch -> the program of one step.

1. The batch is cut into chunks (:mod:`sim.backward.chunks`): each goes forward and, while the next one goes forward, back again.
2. Gradients of parameters are summed a part at a time (:mod:`sim.backward.gradients`), and updated (:mod:`sim.backward.updates`).
3. Instructions are put in order (:mod:`sim.compiler.scheduling`), and the step is simulated (:mod:`sim.compiler.timing`); of
   several ways to cut the batch, the best is kept.
"""

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Region

from ..compiler.instructions import Ring
from ..compiler.program import CompileError
from ..compiler.scheduling import ordered
from ..compiler.timing import simulate
from ..golden.progress import Progress, touched
from .chunks import Chunk, ChunkCode, kept_vectors
from .gradients import GradientCode
from .memory import StepMemory
from .step_emitter import Constants, StepEmitter
from .step_program import make_step
from .updates import rows_in_flight, update_all

__all__ = ["compile_step"]


def compile_step(training, optimizer, config, batch):
    """The program of one training step for batches of `batch` samples.

    Parameters
    ----------
    training : sim.ir.training.TrainingGraph
    optimizer : sim.ir.optimizers.Sgd or Adam
    config : Config
        With `training`.
    batch : int

    Returns
    -------
    sim.backward.step_program.StepProgram

    Raises
    ------
    CompileError
        One line that names what does not fit.
    """
    if not config.training:
        raise CompileError("a training step needs a core with training; set it in its configuration (--training)")
    best = None
    for starts in chunk_starts(config, batch):
        draft = _draft(training, optimizer, config, batch, starts)
        if draft is None:
            continue
        memory, emitter = draft
        for eager in (0, 1, 2):
            ops = ordered(emitter.ops, simulate(emitter.ops, config, ideal=True), eager)
            timeline = simulate(ops, config)
            if _ends(ops, config) and (best is None or timeline.cycles < best[-1].cycles):
                best = memory, emitter.constants, ops, timeline
    if best is None:
        raise CompileError(f"{training.graph.name}: does not fit")
    return make_step(training, optimizer, config, *best)


def chunk_starts(config, batch):
    """Ways to cut the batch: first samples of the chunks, and the end. The last ones are small, as nothing hides their softmax."""
    n = config.n
    found = [(0, batch)]
    for size in (4 * n, 3 * n, 2 * n, n):
        for last in (n, 2 * n):
            if batch > last:
                starts = [*range(0, batch - last, size)]
                found.append((*starts, -(-(batch - last) // n) * n, batch))
    return list(dict.fromkeys(found))


def _draft(training, optimizer, config, batch, starts):
    """`(memory, emitter)` with all instructions, or None if these chunks do not fit."""
    n = config.n
    memory = StepMemory(training, optimizer, n, batch, starts)
    names = ["identity", "minus", "ones", *optimizer.factors(1, batch, 1)]
    constants = Constants(n, names, 2 * config.bias_depth // 8)
    emitter = StepEmitter(config, memory.sizes[Region.SCRATCH], constants)
    rows = max(-(-(end - first) // n) * n for first, end in zip(starts, starts[1:]))
    kept, slots, base = kept_vectors(memory, rows), min(2, len(starts) - 1), n + 1
    space = config.unified_buffer_depth - base
    if slots * kept + 2 * rows > space or rows * memory.logits.tiles > config.accumulator_depth:
        return None
    operands = Ring(base + slots * kept, space - slots * kept)
    code = ChunkCode(emitter, memory, operands)
    chunks = [Chunk(samples, n, base + index % slots * kept) for index, samples in enumerate(zip(starts, starts[1:]))]
    for index, chunk in enumerate(chunks):
        code.forward(chunk)
        if index == 0:
            emitter.load(Region.MODEL, constants.vector("identity"), n, 0)
            emitter.load(Region.MODEL, constants.vector("ones"), 1, n)
        if index and slots > 1:
            code.backward(chunks[index - 1])
        if slots == 1:
            code.backward(chunk)
    if slots > 1:
        code.backward(chunks[-1])
    widest = max(memory.tensors[one.name].tiles for one in training.gradients) * n
    turned = -(-batch // n) * widest
    most = min(config.accumulator_depth // 4, emitter.biases.size // 3)
    most = min(most, (space - turned) // rows_in_flight(optimizer))
    if most < n:
        return None
    ring = Ring(base + turned, space - turned)
    gradients = GradientCode(emitter, memory, Ring(base, turned), most, n, 0)
    update_all(emitter, optimizer, gradients.parts(), ring)
    return memory, emitter


def _ends(ops, config):
    """Whether a program in this order comes to its end."""
    progress = Progress(config)
    for op in ops:
        host = op.fields.get("rows", 0) * INSTRUCTIONS[op.opcode].vectors(config.n, op.fields) * config.vector_bytes
        if not progress.dispatch(op.opcode, op.fields, touched(op.opcode, op.fields, host), lambda: None):
            return False
    return progress.at_rest
