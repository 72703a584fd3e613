"""Tests that training steps of convolutions, compiled from step graphs, have the reference model's bits on the instruction-level
model."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.stages import identity
from amaranth_tpu.sim.compiler.codegen.job_writer import JobWriter
from amaranth_tpu.sim.compiler.compile_graph import compile_graph
from amaranth_tpu.sim.compiler.lowering import convolutions, grouping
from amaranth_tpu.sim.compiler.memory.windows import Window
from amaranth_tpu.sim.compiler.passes import folding
from amaranth_tpu.sim.compiler.passes.ungrouping import packed
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.windows import Convolution, add_term, patches
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.ir.stage import Pool, Term
from amaranth_tpu.sim.ir.tiles import dense
from graph_steps import run_on_model
from step_networks import Builder
from suites import slow


def _flattened(network, x, classes=3):
    tensor = network.tensors[x]
    term = Term(x, network.weights("w", tensor.height * tensor.width, tensor.channels, classes), tensor.shape[:2])
    network.output = network.stage("logits", classes, term, start=network.bias("b", classes), wide=True)
    return network


def _network(rng, size, channels, layers):
    network = Builder(rng)
    x = network.add_input("x", (*size, channels))
    for number, (count, fields) in enumerate(layers):
        x = network.conv(f"conv{number}", x, count, function=RELU, **fields)
    return _flattened(network, x)


def _check(network, rng, batch, optimizer=None, steps=2, **config):
    optimizer = optimizer or Sgd(0.75, 0.01)
    program = compile_graph(make_step(network, optimizer), Config(**{"n": 4, "training": True, **config}), batch)
    run_on_model(program, optimizer, rng, steps)
    return program


#: Height and width, channels, layers (channels, fields of the convolution), batch, n.
NETWORKS = [
    ((5, 6), 2, [(5, dict(kernel=2, stride=2)), (5, dict(kernel=2, stride=2, padding=1))], 2, 4),
    ((7, 8), 2, [(9, dict(kernel=3)), (5, dict(kernel=3, dilation=2, padding=1)), (4, dict(kernel=2, stride=2))], 3, 8),
    *slow(
        ((4, 6), 3, [(6, dict(kernel=2, stride=2))], 3, 4),
        ((6, 5), 5, [(6, dict(kernel=3, padding=1)), (5, dict(kernel=3, stride=2))], 5, 4),
        ((12, 12), 2, [(5, dict(kernel=5, padding=2)), (5, dict(kernel=2, stride=2))], 2, 4),
        ((7, 9), 9, [(9, dict(kernel=3, padding=1)), (17, dict(kernel=1, stride=2)), (6, dict(kernel=3, padding=2))], 3, 8),
    ),
]


@pytest.mark.parametrize("size, channels, layers, batch, n", NETWORKS)
def test_convolutions(rng, size, channels, layers, batch, n):
    """Kernels with stride, padding and dilation, whose source needs a gradient or is the input, and a dense layer that reads all
    positions."""
    _check(_network(rng, size, channels, layers), rng, batch, n=n, transpose=bool(rng.integers(2)))


def test_random_convolutions(rng):
    layers = []
    for _ in range(2):
        fields = dict(kernel=int(rng.integers(1, 4)), stride=int(rng.integers(1, 4)), dilation=int(rng.integers(1, 3)))
        fields["padding"] = int(rng.integers(0, fields["kernel"] + 1))
        layers.append((int(rng.integers(1, 7)), fields))
    size = tuple(int(one) for one in rng.integers(9, 11, 2))
    if (min(size) + 2 * layers[0][1]["padding"] - 5) // layers[0][1]["stride"] < 4:
        layers[0][1]["stride"] = 1  # so that the second kernel, of at most five positions, fits
    _check(_network(rng, size, int(rng.integers(1, 6)), layers), rng, int(rng.integers(1, 4)), steps=1)


@pytest.mark.parametrize("depthwise", [False, True])
def test_one_channel(rng, depthwise):
    """Trained weights that are one number: they are a tile, as other weights are, and no constant factor."""
    network = Builder(rng)
    x = network.conv("first", network.add_input("x", (5, 6, 2)), 1, kernel=2, function=RELU)
    x = network.conv("second", x, 1, function=RELU)
    if depthwise:
        x = network.stage("gain", 1, Term(x, network.bias("gain.weights", 1, 1.0), groups=1), size=(4, 5))
    _check(_flattened(network, x), rng, 2)


def test_padding_of_one_position(rng):
    """The windows of a source of one position are padding, except one."""
    _check(_network(rng, (3, 3), 2, [(4, dict(kernel=3)), (5, dict(kernel=1, padding=1))]), rng, 3)


def test_samples_with_the_shape_of_grouped_weights(rng):
    """The source of a convolution in groups has as many positions, lines and channels as its weights."""
    layers = [(2, dict(kernel=1)), (2, dict(kernel=2, dilation=2, padding=1, groups=2))]
    _check(_network(rng, (4, 1), 3, layers), rng, 2)


def test_column_tiles_whose_results_do_not_fit_at_once(rng):
    """Small buffers of results: the column tiles of an update are written one by one."""
    network = _network(rng, (6, 6), 6, [(9, dict(kernel=2)), (9, dict(kernel=4, padding=1)), (9, dict(kernel=1))])
    _check(network, rng, 3, steps=1, unified_buffer_depth=512)


def test_jobs_of_padding(rng):
    """The last job of a copy has only rows of padding."""
    layers = [(4, dict(kernel=1, dilation=2)), (1, dict(kernel=2, stride=3, padding=1))]
    _check(_network(rng, (7, 8), 3, layers), rng, 1, steps=1)


def test_lines_of_images_in_small_memories(rng):
    """A job computes some lines of an image if the sums of a whole image do not fit."""
    network = _network(rng, (11, 7), 3, [(5, dict(kernel=3, padding=1)), (6, dict(kernel=3, stride=2, padding=1))])
    program = _check(network, rng, 2, steps=1, accumulator_depth=64, unified_buffer_depth=512, bias_depth=64)
    sums = {one.name: one for one in program.memory.sums if hasattr(one, "shape")}
    assert sums["conv0"].shape.geometry.positions > program.config.accumulator_depth


def _places(program, opcode=Opcode.MATMUL):
    """Returns {name of a sum: places of its instructions}."""
    found = {}
    for place, op in enumerate(program.ops):
        if op.opcode is opcode:
            found.setdefault(op.stage, []).append(place)
    return found


@pytest.mark.search
def test_gradients_of_a_dense_layers_source_are_copied(rng, monkeypatch):
    """Each position has its own weights, so windows of the gradient would multiply zeros. Samples are more than n."""
    network = _network(rng, (5, 4), 3, [(5, dict(kernel=2))])
    program = _check(network, rng, 6, steps=1)
    monkeypatch.setattr(grouping, "scattered", lambda *_: None)
    windows = compile_graph(make_step(network, Sgd(0.75, 0.01)), Config(n=4, training=True), 6)
    assert program.cost.compute_cycles < windows.cost.compute_cycles


@pytest.mark.search
def test_lines_of_padding_are_not_multiplied(rng, monkeypatch):
    """Passes after the first leave out the lines at the rims that have no operand."""
    network = _network(rng, (7, 6), 3, [(5, dict(kernel=1)), (6, dict(kernel=3)), (5, dict(kernel=3, padding=2))])
    program = _check(network, rng, 3, steps=1)
    monkeypatch.setattr(Window, "reach", lambda self, position, first, lines: (0, lines))
    whole = compile_graph(make_step(network, Sgd(0.75, 0.01)), Config(n=4, training=True), 3)
    assert 20 * program.cost.compute_cycles < 19 * whole.cost.compute_cycles


@pytest.mark.search
def test_dense_layers_read_a_copy_by_samples(rng, monkeypatch):
    """One copy serves the sums and the gradient of the weights. It loads each vector once, although its column tiles read the
    tiles of channels in turns."""
    network = _network(rng, (4, 5), 3, [(13, dict(kernel=1))])
    program = _check(network, rng, 9, steps=1, unified_buffer_depth=1024)
    (name,) = (one for one in _places(program) if one.startswith("windows of conv0"))
    loads = [program.ops[place] for place in _places(program, Opcode.LOAD)[name]]
    assert sum(one.rows for one in loads if one.fields["region"] is Region.SCRATCH) == 4 * 4 * 5 * 9
    passes, results = (_places(program, opcode)[name] for opcode in (Opcode.MATMUL, Opcode.ACTIVATE))
    assert 4 * len(passes) < len(results)  # a MATMUL has the four tiles of a position
    monkeypatch.setattr(convolutions, "_is_whole", lambda *_: False)
    windows = compile_graph(make_step(network, Sgd(0.75, 0.01)), Config(n=4, training=True, unified_buffer_depth=1024), 9)
    assert program.predicted_cycles < windows.predicted_cycles


@pytest.mark.parametrize("size, depth", [((9, 8), 512), *slow(((12, 11), 256))])
def test_copies_of_parts_of_an_image(rng, size, depth):
    """A job copies some lines, or some positions of a line, if the gradients of a whole image do not fit."""
    network = _network(rng, size, 3, [(13, dict(kernel=1))])
    _check(network, rng, 3, steps=1, accumulator_depth=64, unified_buffer_depth=depth, bias_depth=64)


def test_images_of_open_jobs_are_their_own(rng):
    """A copy of windows for an update loads the images that a layer reads, into memory that updates overwrite before the layer's
    job is complete. The layer has its own images."""
    network = Builder(rng)
    x = network.conv("first", network.add_input("x", (11, 7, 5)), 5, kernel=3, stride=2, dilation=2, padding=1, function=RELU)
    pool = Pool((3, 2), (1, 1), (3, 2))
    x = network.conv("second", x, 5, kernel=4, stride=2, padding=2, pool=pool, function=RELU)
    _check(_flattened(network, x), rng, 3, Sgd(0.75), steps=1, unified_buffer_depth=512)


def test_layers_take_turns(rng):
    """The first layer waits for its results, so the second begins when the first samples are known. The dense layer's update
    waits for STOREs, so it begins beside gradients of samples. Updates that fill the array follow, and have all memories."""
    network = _network(rng, (8, 8), 3, [(8, dict(kernel=1)), (8, dict(kernel=3, padding=1)), (4, dict(kernel=3))])
    found = _places(_check(network, rng, 6, steps=1))
    assert found["conv1"][0] < found["conv0"][-1]
    end = found["gradient of conv0"][-1]
    assert found["gradient of w"][0] < end < found["gradient of conv2.weights"][0]


@pytest.mark.search
def test_updates_begin_between_pieces_of_a_gradient(rng, monkeypatch):
    """The gradient of the dense layer's weights leaves the array idle, so its passes are between those of a convolution's."""
    network = _network(rng, (8, 8), 1, [(8, dict(kernel=3, padding=1)), (12, dict(kernel=3, padding=1))])
    program = _check(network, rng, 6, steps=1)
    monkeypatch.setattr(JobWriter, "in_pieces", property(lambda self: False, lambda self, value: None), raising=False)
    whole = compile_graph(make_step(network, Sgd(0.75, 0.01)), Config(n=4, training=True), 6)
    assert program.predicted_cycles < whole.predicted_cycles


def test_patches_with_attention(rng):
    """Tokens are patches of an image. Attention pads samples to whole tiles; their number is not a multiple of n."""
    network = Builder(rng)
    x = network.conv("patches", network.add_input("x", (4, 6, 3)), 5, kernel=2, stride=2)
    size = network.tensors[x].shape[:2]
    q, k, v = (network.conv(kind, x, 5) for kind in "qkv")
    share = network.stage("share", 6, Term(q, k, swapped=True), size=size, softmax=True)
    o = network.stage("o", 5, Term(share, v), size=size)
    _check(_flattened(network, network.conv("out", o, 7, kernel=3, padding=1)), rng, 3)


def test_averages_and_a_gate_over_all_positions(rng):
    """Depthwise sums by constant numbers, to one position, and from one position to all."""
    network = Builder(rng)
    x = network.conv("conv", network.add_input("x", (4, 5, 3)), 6, kernel=3, padding=1, function=RELU)
    share = network.add_constant("share", rng.normal(0.05, 0.01, (20, 1, 6)).astype(bfloat16))
    mean = network.stage("mean", 6, Term(x, share, (4, 5), groups=6))
    gate = network.conv("gate", mean, 6, function=Function("sigmoid"))
    ones = network.add_constant("ones", np.ones((20, 1, 6), bfloat16))
    spread = network.stage("spread", 6, Term(gate, ones, (4, 5), padding=(3, 4), groups=6), size=(4, 5))
    half = network.add_constant("half", np.full((4, 1, 6), 0.25, np.float32).astype(bfloat16))
    x = network.conv("next", x, 6, kernel=3, padding=1, times=spread)
    x = network.stage("pooled", 6, Term(x, half, (2, 2), (2, 2), groups=6), size=(2, 2))
    _check(_flattened(network, x), rng, 3)


def _pooled(network, name, x, channels, window, **fields):
    """Adds a convolution and max pooling; returns the output."""
    height, width, _ = network.tensors[x].shape
    pool = Pool(window, (height // window[0], width // window[1]), window)
    return network.conv(name, x, channels, kernel=3, padding=1, pool=pool, **fields)


@pytest.mark.parametrize("size, window", [((5, 7), (2, 3)), *slow(((6, 4), (2, 2)), ((7, 7), (3, 2)), ((4, 6), (1, 3)))])
def test_max_pooling(rng, size, window):
    """Windows with ties, sizes that are no multiples of the window, and a function after pooling."""
    network = Builder(rng)
    x = _pooled(network, "first", network.add_input("x", (*size, 3)), 6, window, function=RELU)
    _check(_flattened(network, _pooled(network, "second", x, 5, (1, 2), function=Function("sigmoid"))), rng, 3)


@pytest.mark.parametrize("window", [(2, 6), *slow(((5, 7),))])
def test_max_pooling_with_one_window(rng, window):
    """Strides do not count if there is one window. Positions outside of the window have no gradient."""
    network = Builder(rng)
    x = network.add_input("x", (5, 7, 3))
    x = network.conv("conv", x, 5, kernel=3, padding=1, pool=Pool(window, (1, 1)), function=RELU)
    program = _check(_flattened(network, x), rng, 3, steps=1)
    fields = [op.fields for op in program.ops if op.opcode is Opcode.POOL]
    assert fields and all(one["rows0"] == 1 and (one["rows1"] == 1 or one["rows1_stride"] == 5 * 7) for one in fields)
    places = [(op.fields["operand"], op.fields["buffer"]) for op in program.ops if op.opcode is Opcode.SELECT]
    assert all(0 < buffer - operand < 64 for operand, buffer in places)  # interlocks see one range of rows


def test_max_pooling_of_parts_of_an_image(rng):
    """A job has whole lines of windows, if the sums of an image do not fit."""
    network = Builder(rng)
    x = _pooled(network, "first", network.add_input("x", (12, 6, 3)), 5, (2, 2), function=RELU)
    _check(_flattened(network, x), rng, 2, steps=1, accumulator_depth=64, unified_buffer_depth=512, bias_depth=64)


def test_max_pooling_beside_attention(rng):
    """Samples of the pooled tensor are padded to whole tiles."""
    network = Builder(rng)
    x = _pooled(network, "first", network.add_input("x", (4, 6, 3)), 5, (2, 2), function=RELU)
    q, k, v = (network.conv(kind, x, 5) for kind in "qkv")
    share = network.stage("share", 6, Term(q, k, swapped=True), size=(2, 3), softmax=True)
    x = network.stage("o", 5, Term(share, v), identity(network, x), size=(2, 3))
    x = _pooled(network, "second", x, 4, (2, 1))
    _check(_flattened(network, x), rng, 3)


def test_windows_are_the_patches_of_the_reference_model(rng):
    for _ in range(50):
        kernel, stride, dilation = (tuple(int(one) for one in rng.integers(1, 4, 2)) for _ in range(3))
        padding, source = (tuple(int(one) for one in rng.integers(low, high, 2)) for low, high in ((-1, 4), (4, 9)))
        need = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
        size = tuple(max(1, (have + 2 * p - k) // s + 1) for have, p, k, s in zip(source, padding, need, stride))
        values = (1 + np.arange(source[0] * source[1])).reshape(1, *source, 1)
        term = Convolution(np.zeros((*kernel, 1, 1), bfloat16), stride, dilation, padding)
        expected = patches(values, term, size)[0, ..., 0]
        window = Window(kernel, stride, dilation, padding, (1, 1), source, size)
        first = int(rng.integers(size[0]))
        lines = int(rng.integers(1, size[0] - first + 1))
        rows = window.image(first, lines)
        image = np.where(rows < 0, 0, rows + 1)
        (_, down), (_, across) = window.loops(lines)
        for position in range(window.positions):
            y, x = np.ogrid[:lines, : size[1]]
            found = image[window.offset(position) + y * down + x * across]
            assert np.array_equal(found, expected[first : first + lines, :, position])
            read = np.flatnonzero(found.any(axis=1))
            assert window.reach(position, first, lines) == ((read[0], read[-1] + 1) if read.size else None)


@pytest.mark.search
def test_windows_of_inputs_are_gathered_by_the_host(rng, monkeypatch):
    """A second reader of an input reads the input itself. Gathered channels fill tiles: fewer cycles, and the same bits."""
    network = Builder(rng)
    x = network.add_input("x", (5, 5, 3))
    one = network.conv("one", x, 6, kernel=3, padding=1, function=RELU)
    term = Term(x, network.weights("two.weights", 1, 3, 6))
    network = _flattened(network, network.stage("two", 6, term, identity(network, one), size=(5, 5)))
    program = _check(network, rng, 3, Adam(), steps=1)
    assert [shape for _, shape in _input_shapes(program)] == [(5, 5, 3), (5, 5, 27), (5, 5, 28)]
    monkeypatch.setattr(folding, "_saves", lambda *_: False)
    apart = compile_graph(make_step(network, Adam()), Config(n=4, training=True), 3)
    assert len(_input_shapes(apart)) == 1 and program.predicted_cycles < apart.predicted_cycles


def _input_shapes(program):
    step = program.memory.folded.step
    return [(name, step.tensors[name].shape) for name in step.inputs]


def test_a_ring(rng):
    """The gradients of all kernel positions are sums over the cores."""
    network, optimizer = _network(rng, (4, 5), 2, [(5, dict(kernel=3, padding=1)), (6, dict(kernel=2, stride=2))]), Sgd(0.75)
    step = make_step(network, optimizer, 2, sharded=False)
    run_on_model(compile_graph(step, Config(n=4, training=True, ring=True), 2, 2), optimizer, rng, 1)


@pytest.mark.parametrize(
    "channels, layers, optimizer",
    [
        (4, [(6, dict(kernel=3, padding=1, groups=2))], Sgd(0.75, 0.01)),
        (6, [(6, dict(kernel=3, groups=6, stride=2)), (9, dict(groups=3)), (9, dict(kernel=2, groups=9))], Sgd()),
        *slow((6, [(12, dict(kernel=3, padding=1, groups=6))], Adam())),
    ],
)
def test_trained_groups(rng, channels, layers, optimizer):
    """Depthwise and grouped convolutions, whose weights of all channels keep other numbers outside of the groups."""
    _check(_network(rng, (5, 6), channels, layers), rng, 2, optimizer)


def test_weights_of_groups_on_the_host(rng):
    values = rng.normal(size=(9, 2, 6)).astype(np.float32)
    full = dense(values, 3)
    assert full.shape == (9, 6, 6) and np.array_equal(packed(full, 3), values)
    x = bfloat16(rng.normal(size=(1, 4, 5, 6)))
    one = Convolution(values.reshape(3, 3, 2, 6).astype(bfloat16), groups=3)
    other = Convolution(full.reshape(3, 3, 6, 6).astype(bfloat16))
    assert np.array_equal(
        add_term(np.zeros((1, 2, 3, 6), np.float32), x, one), add_term(np.zeros((1, 2, 3, 6), np.float32), x, other)
    )


def test_a_product_of_images_of_two_sizes(rng):
    network = Builder(rng)
    x = network.conv("conv", network.add_input("x", (4, 4, 4)), 4, kernel=3, padding=1)
    y = network.conv("other", x, 4, kernel=2, stride=2)
    share = network.stage("share", 4, Term(x, y, swapped=True), size=(4, 4), softmax=True)
    _check(_flattened(network, share), rng, 2)
