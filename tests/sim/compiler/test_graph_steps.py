"""Tests that programs compiled from step graphs compute the reference model's bits on the instruction-level model."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.stages import identity
from amaranth_tpu.sim.compiler.codegen import job_writer
from amaranth_tpu.sim.compiler.codegen.scheduling import completes, ordered
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.compiler.order import pipeline
from amaranth_tpu.sim.compiler.order import search as compile_module
from amaranth_tpu.sim.compiler.timing.model import simulate
from amaranth_tpu.sim.compiler.timing.units import STORE
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Term
from graph_steps import dense_network, run_on_model
from step_networks import Builder, normalized_convolutions, transformer
from suites import slow

#: Sizes of layers, batch, array size n.
DENSE = [((9, 11, 5), 6, 4), ((5, 3), 1, 4), ((5, 13, 3), 70, 4), *slow(((20, 13, 12, 7), 35, 8))]


def _compiled(network, optimizer, batch, *, counted=False, **config):
    return compile_graph(make_step(network, optimizer, counted=counted), Config(**{"n": 4, "training": True, **config}), batch)


@pytest.mark.smoke
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("sizes, batch, n", DENSE)
def test_dense_networks(rng, sizes, batch, n, transpose):
    optimizer = Sgd(0.75, 0.01)
    program = _compiled(dense_network(rng, sizes), optimizer, batch, n=n, transpose=transpose)
    run_on_model(program, optimizer, rng)


@pytest.mark.parametrize("function", ["relu", "gelu"])
def test_dropout_of_the_result_of_a_function(rng, function):
    """The function is applied to the sums, and the mask multiplies the rounded result."""
    network = Builder(rng)
    x, mask = network.add_input("x", (1, 1, 5)), network.add_input("mask", (1, 1, 6))
    network.masks = (mask,)
    x = network.conv("hidden", x, 6, function=RELU if function == "relu" else Function(function), times=mask)
    network.output = network.conv("logits", x, 3, wide=True)
    run_on_model(_compiled(network, Sgd(), 4), Sgd(), rng, steps=1)


@pytest.mark.parametrize("n, batch, cores, optimizer", [(4, 3, 1, Sgd()), (16, 5, 1, Adam()), (4, 2, 2, Sgd())])
def test_statistics_of_a_batch(rng, n, batch, cores, optimizer):
    """Sums over the samples of all cores, also in lanes without a channel, are known before the next stage of samples."""
    network = normalized_convolutions(rng, batch * cores)
    step = make_step(network, optimizer, cores, sharded=False)
    program = compile_graph(step, Config(n=n, training=True, ring=cores > 1, update_lanes=1 if n == 4 else 0), batch, cores)
    run_on_model(program, optimizer, rng)


def test_squared_error(rng):
    """The gradient of the result is added to its sums, which stay on the chip."""
    step = make_step(dense_network(rng, (5, 6, 3)), Sgd(), loss=Loss.SQUARED_ERROR)
    run_on_model(compile_graph(step, Config(n=4, training=True), 6), Sgd(), rng, steps=1)


@pytest.mark.search
def test_chunks_of_the_batch_save_cycles(rng, monkeypatch):
    """The Softmax of a chunk overlaps with products of the next chunk."""
    step = make_step(dense_network(rng, (40, 32, 10)), Sgd())
    together = compile_graph(step, Config(n=4, training=True), 60)
    monkeypatch.setattr(compile_module, "divisions", lambda *_: [(0,)])
    apart = compile_graph(step, Config(n=4, training=True), 60)
    assert together.predicted_cycles < 0.98 * apart.predicted_cycles
    assert together.useful_macs == apart.useful_macs


def test_late_stores_stay_before_their_readers(rng):
    """STOREs move behind other instructions, but not behind one that waits for them, and their order stays."""
    program = compile_graph(make_step(dense_network(rng, (40, 32, 10)), Sgd()), Config(n=4, training=True), 21)
    ops, config = program.ops, program.config
    order = ordered(ops, simulate(ops, config, ideal=True), 1, 10**6)
    stores = [op for op in order if op.unit == STORE]
    assert order != ordered(ops, simulate(ops, config, ideal=True), 1)
    assert stores == [op for op in ops if op.unit == STORE] and completes(order, config)
    for place, op in enumerate(order):
        before = sum(one.unit == STORE for one in order[:place])
        assert all(unit != STORE or need <= before for unit, need in op.waits)
    late = [op for op in order if any(need > 1 for _, need in op.waits)]
    op = late[int(rng.integers(len(late)))]
    unit, need = max(op.waits, key=lambda one: one[1])
    others = [one for one in order if one is not op]
    awaited = [one for one in others if one.unit == unit][need - 1]
    others.insert(others.index(awaited), op)
    assert not completes(others, config), "an instruction precedes the one that it waits for"


def test_small_memories(rng):
    """Operands that do not fit the unified buffer are loaded piece by piece."""
    network = dense_network(rng, (60, 9, 5))
    program = _compiled(network, Sgd(), 11, unified_buffer_depth=128, accumulator_depth=64, bias_depth=32)
    run_on_model(program, Sgd(), rng, steps=1)


#: Positions, channels, heads, letters, blocks, LayerNorm (False: RMSNorm), batch, n, optimizer. Adam's norms are by NORMALIZE.
TRANSFORMERS = [
    (3, 5, 1, 3, 1, True, 2, 4, Sgd()),
    (3, 5, 1, 3, 1, True, 2, 8, Adam()),
    *slow(
        (3, 5, 1, 3, 1, True, 2, 8, Sgd()),  # factors of the norms have fewer channels than a tile
        (5, 9, 1, 6, 1, False, 2, 4, Sgd()),
        (6, 16, 2, 7, 1, True, 3, 4, Sgd()),
        (8, 8, 2, 5, 1, True, 2, 8, Sgd(0.9, 0.01)),
        (5, 9, 1, 6, 2, False, 2, 4, Adam()),
        (7, 12, 3, 9, 2, True, 5, 4, Sgd()),
        (16, 24, 2, 11, 1, True, 3, 16, Adam()),
    ),
]


@pytest.mark.parametrize("tokens, width, heads, letters, blocks, centred, batch, n, optimizer", TRANSFORMERS)
def test_transformers(rng, tokens, width, heads, letters, blocks, centred, batch, n, optimizer):
    """Attention, norms, GELU, residual sums, a tied embedding, positions, and the loss of each token with a mask."""
    network = transformer(rng, tokens, width, heads, letters, blocks, centred)
    network.normalize = isinstance(optimizer, Adam)
    core = {"n": n, "softmax_lanes": 2, "normalize": network.normalize}
    program = _compiled(network, optimizer, batch, counted=True, **core)
    norms = sum(op.opcode is Opcode.NORMALIZE for op in program.ops)
    assert norms >= 2 * (2 * blocks + 1) if network.normalize else norms == 0
    run_on_model(program, optimizer, rng, steps=1)
    if network.normalize:
        with pytest.raises(CompileError, match="normalize"):
            _compiled(network, optimizer, batch, counted=True, **core | {"normalize": False})


@pytest.mark.parametrize(
    "queries, keys, batch, memories", [(3, 6, 3, {}), (7, 3, 2, {}), (21, 2, 3, {"unified_buffer_depth": 512})]
)
def test_cross_attention(rng, queries, keys, batch, memories):
    """The keys and values of two heads are another input, with another number of positions. Both inputs have layers before."""
    network, width, terms = Builder(rng), 6, []
    x, memory = (network.add_input(name, (1, count, width)) for name, count in (("x", queries), ("memory", keys)))
    for head in range(2):
        q, k, v = (network.conv(f"{head}.{kind}", source, 3) for kind, source in zip("qkv", (x, memory, memory)))
        share = network.stage(f"{head}.share", keys, Term(q, k, swapped=True), size=(1, queries), softmax=True)
        o = network.stage(f"{head}.o", 3, Term(share, v), size=(1, queries))
        terms.append(Term(o, network.weights(f"{head}.out", 1, 3, width)))
    y = network.stage("y", width, identity(network, x), *terms, size=(1, queries), start=network.bias("bias", width))
    network.output = network.conv("logits", y, 5, wide=True)
    run_on_model(_compiled(network, Sgd(0.5), batch, n=4, attention=True, **memories), Sgd(0.5), rng)


@pytest.mark.parametrize("memories", [dict(unified_buffer_depth=512, accumulator_depth=256), dict(accumulator_depth=64)])
def test_transformers_in_small_memories(rng, memories):
    """Diagonals of a norm's gain have no lower half, and a transposition has room for a tile, whatever the memories hold."""
    network = transformer(rng, 3, 12, 1, 4, 1, True)
    program = _compiled(network, Sgd(), 2, n=8, counted=True, **memories)
    diagonals = [matrix for (_, form), matrix in program.memory.matrices.items() if form == "diagonal"]
    assert diagonals and not any(matrix.wide for matrix in diagonals)
    run_on_model(program, Sgd(), rng, steps=1)


def test_sums_of_a_gradient_stay_on_the_chip(rng):
    """The gradient of weights is not stored: STORE has only results, and the momentum and both halves of each parameter."""
    program = _compiled(dense_network(rng, (8, 4)), Sgd(), 4)
    stored = sum(op.fields["rows"] for op in program.ops if op.opcode is Opcode.STORE)
    logits, gradient, weights, bias = 2 * 4, 4, 3 * 8, 3
    assert stored == logits + gradient + weights + bias


def _updated(program):
    return sum(op.fields["rows"] for op in program.ops if op.opcode is Opcode.UPDATE)


#: Decay, n, lanes, cores.
LANES = [(0, 4, 2, 1), (0, 8, 8, 1), (0.01, 4, 1, 1), (0, 4, 4, 2), *slow((0, 8, 1, 1), (0, 8, 2, 2), (0.01, 8, 2, 2))]


@pytest.mark.parametrize("decay, n, lanes, cores", LANES)
@pytest.mark.parametrize("kind", ["dense", "transformer"])
def test_update_lanes(rng, kind, decay, n, lanes, cores):
    """UPDATE computes momentum and parameters. Weights with weight decay keep the passes of the array."""
    optimizer, sizes, counted = Sgd(0.75, decay), (9, 13, 5), kind == "transformer"
    network = transformer(rng, 3, 5, 1, 3, 1) if counted else dense_network(rng, sizes)
    step = make_step(network, optimizer, cores, counted=counted, sharded=False)
    program = compile_graph(step, Config(n=n, training=True, ring=True, update_lanes=lanes), 3, cores)
    run_on_model(program, optimizer, rng)
    updated = [name for name, one in step.parameters.items() if not (decay and one.decays)]
    rows = {name: (matrix.rows, matrix.tiles) for name in updated for matrix in [program.memory.matrix(name)]}
    few = 4 * lanes < n
    assert _updated(program) == sum(rows * tiles for rows, tiles in rows.values()) or few and not _updated(program)


@pytest.mark.search
def test_few_update_lanes(rng):
    """If an UPDATE takes longer than the passes of the array, the array computes the update."""
    step = make_step(dense_network(rng, (40, 32, 10)), Sgd())
    programs = {lanes: compile_graph(step, Config(n=16, training=True, update_lanes=lanes), 8) for lanes in (0, 1, 4)}
    assert programs[1].predicted_cycles == programs[0].predicted_cycles > 1.05 * programs[4].predicted_cycles
    assert _updated(programs[4]) and not _updated(programs[1])


def test_refusals(rng):
    with pytest.raises(CompileError, match="^a training step needs a core with training; [^\n]*$"):
        _compiled(dense_network(rng, (5, 3)), Sgd(), 2, training=False)
    with pytest.raises(CompileError, match="^dense0[^:]*: needs a core with table_lanes; [^\n]*$"):
        _compiled(dense_network(rng, (5, 3), Function("gelu")), Adam(), 2, table_lanes=0)
    with pytest.raises(CompileError, match="^constants and operands of this step: unified_buffer_depth = 32: [^\n]*$"):
        _compiled(dense_network(rng, (5, 3)), Sgd(), 2, n=8, unified_buffer_depth=32)
    with pytest.raises(CompileError, match="^0.0.share: bias_depth = 16: [^\n]*$"):
        _compiled(transformer(rng, 8, 8, 1, 3), Sgd(), 1, bias_depth=16, counted=True)


@pytest.mark.search
def test_results_that_stay_on_the_chip_are_not_stored(rng, monkeypatch):
    """Adam's intermediate results are read from the unified buffer. Their STOREs are removed, and no bit changes."""
    step = make_step(dense_network(rng, (5, 6, 3)), Adam())
    program = compile_graph(step, Config(n=4, training=True), 6)
    run_on_model(program, Adam(), rng, steps=2)
    monkeypatch.setattr(compile_module, "without_dead_stores", lambda ops, *_: ops)
    stored = compile_graph(step, Config(n=4, training=True), 6)
    counts = [sum(op.unit == STORE for op in one.ops) for one in (program, stored)]
    assert counts[0] < counts[1] and program.predicted_cycles < stored.predicted_cycles


def test_products_overwrite_operands_that_are_read_once(rng):
    """Each product of Adam replaces its operand in the unified buffer, and no operand of a product is loaded."""
    program = _compiled(dense_network(rng, (9, 11, 5)), Adam(), 6)
    products = [op.fields for op in program.ops if op.opcode is Opcode.MULTIPLY]
    assert products and all(fields["operand"] == fields["buffer"] for fields in products)
    loaded = {op.fields["offset"] for op in program.ops if op.opcode is Opcode.LOAD and op.fields["region"] is Region.SCRATCH}
    size, matrices = program.config.vector_bytes, program.memory.matrices.values()
    for matrix in matrices:
        if matrix.name.endswith((", square", ", root", ", root beyond", ", step")):
            assert not loaded & {(matrix.vector + row) * size for row in range(matrix.size)}, matrix.name


@pytest.mark.search
def test_updates_of_several_steps_overlap(rng, monkeypatch):
    """The steps of an update by Adam alternate with the steps of the updates before and after it."""
    step = make_step(dense_network(rng, (200, 32, 10)), Adam())
    together = compile_graph(step, Config(n=8, training=True), 8)
    monkeypatch.setattr(pipeline, "UPDATE_JOBS", 1)
    apart = compile_graph(step, Config(n=8, training=True), 8)
    assert together.predicted_cycles < 0.98 * apart.predicted_cycles
    run_on_model(together, Adam(), rng, steps=2)


def test_operands_of_a_gradient_are_transposed_once(rng):
    """A large batch gets jobs of fewer rows, so that their transposed operands stay on the chip for all column tiles."""
    n, batch, sizes = 4, 256, (60, 40, 3)
    program = _compiled(dense_network(rng, sizes), Sgd(), batch, n=n, unified_buffer_depth=2048)
    assert not program.config.transpose
    stored = sum(op.fields["rows"] for op in program.ops if op.opcode is Opcode.STORE)
    written = sum(op.rows for op in program.ops if op.opcode is Opcode.ACTIVATE)
    transposed = sum(-(-size // n) * n * batch // n for size in sizes[1:])
    assert written < stored + 1.25 * transposed
    run_on_model(program, Sgd(), rng, steps=1)


@pytest.mark.slow
@pytest.mark.search
def test_operands_of_long_gradients_stay_on_the_chip(rng, monkeypatch):
    """If the transposed gradients of a batch need more than half of the unified buffer, results of updates by Adam have less."""
    step = make_step(dense_network(rng, (48, 128, 10)), Adam())
    program = compile_graph(step, Config(training=True), 512)
    monkeypatch.setattr(job_writer, "LEAST_ROWS", 0)
    assert program.predicted_cycles < compile_graph(step, Config(training=True), 512).predicted_cycles
