"""Tests that the golden model trains ONNX models with attention, gates and groups, and exports the trained models. The compiler
of steps compiles them, or refuses them."""

from collections import Counter

import numpy as np
import onnx
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.autodiff.network import step_network
from amaranth_tpu.sim.compiler.step import compile_step
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.inputs import in_inference_form, in_training_form
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.network import run_graph
from amaranth_tpu.sim.golden.training import bound_graph, initial_state, one_hot, step
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.trainer.new_training import trainable_network
from onnx_models import Builder, close, reference, weights
from step_reference import gradient_errors
from suites import all_but, slow
from training_runs import FIXED
from training_steps import run_steps


def _attention(rng):
    b = Builder(["n", 6, 8])
    q, k, v = (b.node("MatMul", ["x", weights(rng, 8, 8)]) for _ in range(3))
    b.node("Transpose", [k], perm=[0, 2, 1])
    b.node("MatMul", [q, b.last])
    shares = b("Softmax", axis=-1, name="shares")
    b.node("MatMul", [shares, v])
    b("Add", "x")
    b("Flatten")
    b("Gemm", weights(rng, 48, 5), np.zeros(5, np.float32))
    return b


def _separable(rng):
    b = Builder(["n", 4, 6, 6])
    b("Conv", weights(rng, 4, 1, 3, 3), weights(rng, 4), group=4, strides=[2, 2], pads=[1, 1, 1, 1], name="depthwise")
    b("Conv", weights(rng, 8, 2, 1, 1), weights(rng, 8), group=2)
    b("Tanh")
    b("GlobalAveragePool")
    b("Flatten")
    b("Gemm", weights(rng, 8, 5), weights(rng, 5))
    return b


def _gate(rng):
    """Returns a model that multiplies a dense layer by the sigmoid of a second dense layer."""
    b = Builder(["n", 12])
    b("Gemm", weights(rng, 12, 9), weights(rng, 9))
    gate = b("Sigmoid")
    b.node("Gemm", ["x", weights(rng, 12, 9), weights(rng, 9)])
    b.node("Mul", [b.last, gate], name="gate")
    b("Gemm", weights(rng, 9, 5), weights(rng, 5))
    return b


def _norm(rng, width=8):
    b = Builder(["n", 6, 8], opset=17)
    b("MatMul", weights(rng, 8, width))
    b("Add", weights(rng, 6, width))
    b("LayerNormalization", np.ones(width, np.float32), np.zeros(width, np.float32), axis=-1)
    b("Tanh")
    b("Flatten")
    b("Gemm", weights(rng, 6 * width, 5), np.zeros(5, np.float32))
    return b


def _class_token(rng):
    """Returns a model that appends the mean of all positions as a further position, and then adds a trained row per position."""
    b = Builder(["n", 5, 6])
    x = b("MatMul", weights(rng, 6, 6))
    b.node("Concat", [b.node("ReduceMean", [x], axes=[1], keepdims=1), x], axis=1)
    b("Add", weights(rng, 6, 6))
    b("Tanh")
    b("Flatten")
    b("Gemm", weights(rng, 36, 5), weights(rng, 5))
    return b


def _inception(rng):
    """Returns a model with two branches. One branch begins with an average that does not count padding."""
    b = Builder(["n", 2, 4, 5])
    x = b.node("Relu", [b.node("Conv", ["x", weights(rng, 3, 2, 3, 3), weights(rng, 3)], pads=[1, 1, 1, 1])])
    mean = b.node("AveragePool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    branch = b.node("Tanh", [b.node("Conv", [mean, weights(rng, 4, 3, 1, 1), weights(rng, 4)])])
    b.node("Concat", [b.node("Conv", [x, weights(rng, 3, 3, 3, 3)], pads=[1, 1, 1, 1]), branch], axis=1)
    b("AveragePool", kernel_shape=[2, 2], strides=[2, 2], pads=[0, 1, 0, 0])
    b("Flatten")
    b("Gemm", weights(rng, 42, 5), weights(rng, 5))
    return b


def _stacked_images(rng):
    """Returns a model that concatenates lines of images, one with a function and a mask of its own."""
    b = Builder(["n", 2, 3, 4])
    x = b.node("Conv", ["x", weights(rng, 3, 2, 3, 3), weights(rng, 3)], pads=[1, 1, 1, 1])
    y = b.node("Mul", [b.node("Sigmoid", [x]), b.node("Conv", ["x", weights(rng, 3, 2, 1, 1)])])
    b.node("Concat", [x, y, b.node("Softplus", [b.node("AveragePool", [x], kernel_shape=[2, 1])])], axis=2)
    b("Conv", weights(rng, 4, 3, 2, 2), weights(rng, 4), strides=[2, 1])
    b("Tanh")
    b("Flatten")
    b("Gemm", weights(rng, 48, 5), weights(rng, 5))
    return b


def _choice(rng, outputs, inputs):
    """Returns weights of 1 x 1 kernels with one product for each sum: rounding does not change which sum is the largest."""
    values = np.eye(inputs)[rng.integers(0, inputs, outputs)] * rng.choice([-0.5, 0.25, 0.5], (outputs, 1))
    return values.astype(np.float32)[..., None, None]


def _windows(rng):
    """Returns a model of maxima of windows that overlap, have gaps and dilations, and of two tensors."""
    b = Builder(["n", 2, 7, 9])
    x = b.node("Conv", ["x", _choice(rng, 4, 2)])
    over = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2])
    gaps = b.node("MaxPool", [x], kernel_shape=[2, 1], strides=[2, 2], dilations=[2, 1])
    gaps = b.node("Conv", [b.node("Slice", [gaps, *map(np.array, ([1], [5], [3]))]), _choice(rng, 4, 4)])
    b.node("Max", [over, gaps])
    b("Flatten")
    b("Gemm", weights(rng, 48, 5), weights(rng, 5))
    return b


def _rounded_up(rng):
    b = Builder(["n", 2, 3, 7])
    b("Conv", _choice(rng, 4, 2))
    b("Relu")
    b("MaxPool", kernel_shape=[2, 3], strides=[2, 3], ceil_mode=1)
    b("Flatten")
    b("Gemm", weights(rng, 24, 5), weights(rng, 5))
    return b


def _stem(rng):
    """Returns a model that begins like a ResNet: maxima of windows that overlap and include padding, after a ReLU."""
    b = Builder(["n", 3, 9, 9])
    x = b.node("Conv", ["x", _choice(rng, 8, 3)])
    x = b.node("MaxPool", [b.node("Relu", [x])], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    b.node("Add", [x, b.node("Conv", [x, weights(rng, 8, 8, 3, 3)], pads=[1, 1, 1, 1])])
    b("Tanh")
    b("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    b("Flatten")
    b("Gemm", weights(rng, 32, 5), weights(rng, 5))
    return b


def _recurrent(rng, kind, gates, biased=True):
    """Returns a model with a recurrent layer of three steps, which adds two biases and uses its weights in each step."""
    b, bias = Builder(["n", 3, 3], opset=14), np.zeros((1, 8 * gates), np.float32)
    b("Transpose", perm=[1, 0, 2])
    settings = {"linear_before_reset": 1} if kind == "GRU" else {}
    bias = weights(rng, 1, 8 * gates) if biased else bias
    b(kind, weights(rng, 1, 4 * gates, 3), weights(rng, 1, 4 * gates, 4), bias, hidden_size=4, **settings)
    b("Transpose", perm=[2, 0, 1, 3])
    b("Flatten")
    b("Gemm", weights(rng, 12, 5), weights(rng, 5))
    return b


def _shared_layer(rng):
    """Returns a model with two layers that it computes twice, as a network that is unrolled by hand."""
    b = Builder(["n", 6])
    first, again, bias = (b.constant(values) for values in (weights(rng, 6, 6), weights(rng, 6, 6), weights(rng, 6)))
    for _ in range(2):
        b("MatMul", first)
        b("Tanh")
        b("MatMul", again)
        b("Add", bias)
    b("Tanh")
    b("Gemm", weights(rng, 6, 5), weights(rng, 5))
    return b


def _own_token(rng, is_zero=False):
    """Returns a model that puts a trained token before the positions, adds a row to each, and normalizes them."""
    b = Builder(["n", 2, 4, 4], opset=17)
    batch = b.node("Gather", [b.node("Shape", ["x"]), np.array([0])])
    shape = b.node("Concat", [batch, np.array([1, 8])], axis=0)
    token = b.node("Expand", [weights(rng, 1, 1, 8) * np.float32(not is_zero), shape])
    b.node("Conv", ["x", weights(rng, 8, 2, 2, 2), weights(rng, 8)], strides=[2, 2])
    b("Reshape", np.array([0, 8, 4]))
    b("Transpose", perm=[0, 2, 1])
    b.node("Concat", [token, b.last], axis=1)
    b("Add", weights(rng, 1, 5, 8))
    b("LayerNormalization", np.ones(8, np.float32), np.zeros(8, np.float32), axis=-1)
    b("Tanh")
    b("Flatten")
    b("Gemm", weights(rng, 40, 5), weights(rng, 5))
    return b


def _upsampled(rng, kind):
    """Returns a model that computes four pixels or more for each one, and their convolution."""
    b = Builder(["n", 2, 3, 3])
    b("Conv", weights(rng, 4, 2, 2, 2), weights(rng, 4))
    b("Tanh")
    if kind == "ConvTranspose":
        b(kind, weights(rng, 4, 3, 3, 3), weights(rng, 6), group=2, strides=[2, 2], pads=[1, 1, 0, 1], output_padding=[0, 1])
    elif kind == "Resize":
        b(kind, "", np.float32([1, 1, 2, 2]), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    else:
        b(kind, blocksize=2)
    channels = {"ConvTranspose": 6, "Resize": 4}.get(kind, 1)
    b("Conv", weights(rng, 3, channels, 2, 2), weights(rng, 3))
    b("Tanh")
    b("Flatten")
    b("Gemm", weights(rng, 27, 5), weights(rng, 5))
    return b


def _slopes(rng, shape, *inputs):
    """Returns a model with a PReLU whose slopes have a shape, between two layers."""
    b = Builder(["n", *inputs])
    b("Gemm", weights(rng, 6, 6), weights(rng, 6)) if len(inputs) == 1 else b("Conv", weights(rng, 3, 2, 1, 1))
    b("PRelu", rng.uniform(0.1, 0.5, shape).astype(np.float32))
    if len(inputs) > 1:
        b("Conv", weights(rng, 2, 3, 2, 2))
        b("Flatten")
    b("Gemm", weights(rng, 6, 5), weights(rng, 5))
    return b


#: Models that are read otherwise for training.
OF_OWN_FORM = {
    "transposed convolution": lambda rng: _upsampled(rng, "ConvTranspose"),
    "resized": lambda rng: _upsampled(rng, "Resize"),
    "depth to space": lambda rng: _upsampled(rng, "DepthToSpace"),
    "slope": lambda rng: _slopes(rng, 1, 6),
    "slopes of channels": lambda rng: _slopes(rng, 6, 6),
    "slopes of positions": lambda rng: _slopes(rng, (3, 2, 4), 2, 2, 4),
}
CASES = {
    "attention": _attention,
    "separable": _separable,
    "gate": _gate,
    "norm": _norm,
    "class token": _class_token,
    "inception": _inception,
    "stacked images": _stacked_images,
    "windows": _windows,
    "stem": _stem,
    "windows that are not full": _rounded_up,
    "LSTM": lambda rng: _recurrent(rng, "LSTM", 4),
    "GRU": lambda rng: _recurrent(rng, "GRU", 3),
    "GRU with biases of zero": lambda rng: _recurrent(rng, "GRU", 3, biased=False),
    "shared layer": _shared_layer,
    "token": _own_token,
    "token of zeros": lambda rng: _own_token(rng, is_zero=True),
    "norm of 6 channels": lambda rng: _norm(rng, 6),  # 1 / 6 is a sum of two bfloat16 numbers
} | OF_OWN_FORM


def _loaded(rng, name, folder):
    path = CASES[name](rng).save(folder)
    if name in OF_OWN_FORM:
        path.write_bytes(in_training_form(onnx.load(path)).SerializeToString())
    return trainable_network(load_network(path))


def _batch(rng, training, count=6):
    x = round_bfloat16(rng.normal(size=(count, training.input_size)))
    return x, one_hot(rng.integers(0, 5, count), 5)


@pytest.mark.parametrize("name", CASES)
def test_a_step(rng, tmp_path, name):
    """Gradients are near finite differences, and results equal inference. The step on a core has the golden model's bits.
    The trained model has the operators of its file."""
    training = _loaded(rng, name, tmp_path)
    (x, targets), state = _batch(rng, training), initial_state(training, Sgd())
    found = step(training, state, Sgd(), x, targets, 0.1)
    assert np.array_equal(found.logits, run_graph(training, x))
    network = step_network(training)
    given = {training.input: training.arrange_input(x)}
    given |= {name: one.initial[None] for name, one in network.parameters.items()}
    gradients = {name: one[None] for name, one in zip(network.parameters, found.gradients)}
    errors = gradient_errors(rng, network, given, targets[:, None, None], gradients, count=6)
    # As in test_gradients.py: between enlarged rounding and a wrong rule, which gives about 1.
    assert np.median([*errors.values()]) < 0.1 and max(errors.values()) < 0.3, errors
    run_steps(compile_step(training, Sgd(), Config(n=4, training=True), 6), training, Sgd(), rng)
    tied = ModelWriter(training).with_updates(training)
    model, own = ModelWriter(tied).model(bound_graph(tied, step(tied, state, Sgd(), x, targets, 0.1).state))
    given, kept = (Counter(node.op_type for node in one.graph.node) for one in (onnx.load(tmp_path / "model.onnx"), model))
    assert own and not given - kept


@pytest.mark.parametrize("optimizer, rate", [(Sgd(), 0.1), *slow((Adam(), 0.03))])
@pytest.mark.parametrize("name", all_but(["gate", "class token", "windows that are not full"], CASES))
def test_training_lowers_the_loss(tmp_path, name, optimizer, rate):
    rng = np.random.default_rng(FIXED)
    training = _loaded(rng, name, tmp_path)
    training = ModelWriter(training).with_updates(training)
    state, (x, targets), dropout = initial_state(training, optimizer), _batch(rng, training, 12), Dropout(0.1)
    losses = []
    for number in range(12):
        result = step(training, state, optimizer, x, targets, rate, dropout.masks(training, number, 12))
        state, losses = result.state, [*losses, result.loss]
    assert np.mean(losses[-3:]) < 0.8 * losses[0]


@pytest.mark.parametrize(
    "optimizer, rate, cores",
    [(Sgd(0.5, 0.1), 0.1, 1), (Sgd(clip_value=0.01), 0.1, 2), (Sgd(clip_norm=0.1), 0.1, 1), (Adam(weight_decay=0.1), 0.01, 2)],
)
def test_a_constant_factor_changes_no_update(rng, tmp_path, optimizer, rate, cores):
    """A weight that the file multiplies by a number is updated as the file's own weight, by binary64 in the units of the file. A
    core has the same bits."""
    scale = np.float32(rng.choice([0.25, 0.3, 5.0]))
    b = Builder(["n", 6])
    b("MatMul", weights(rng, 6, 5))
    b("Mul", np.array(scale))
    alike = trainable_network(load_network(b.save(tmp_path)))
    training = ModelWriter(alike).with_updates(alike)
    (one,) = training.parameters.values()
    assert np.isclose(one.scale, scale) and str(training) != str(alike)  # a checkpoint of one is refused by the other
    (x, targets), state = _batch(rng, training, 8), initial_state(training, optimizer)
    result = step(training, state, optimizer, x, targets, rate)
    weight, gradient = one.initial / scale, result.gradients[0].astype(float) * scale / 8
    if optimizer.clip_value:
        gradient = gradient.clip(-optimizer.clip_value, optimizer.clip_value)
    if optimizer.clip_norm:
        gradient *= min(1, optimizer.clip_norm / np.linalg.norm(gradient))
    moved = gradient if isinstance(optimizer, Sgd) else np.sign(gradient)
    moved = -rate * (moved + optimizer.weight_decay * weight)
    found = result.state.masters[0] / scale - weight
    large = isinstance(optimizer, Sgd) | (abs(gradient) > 3e-4 * scale)  # the roots of Adam's moments are at least 2^-17
    assert np.linalg.norm((found - moved)[large]) < 0.03 * np.linalg.norm(moved[large])
    config = Config(n=4, training=True, ring=cores > 1)
    run_steps(compile_step(training, optimizer, config, 4, cores=cores), training, optimizer, rng)


@pytest.mark.parametrize("name", all_but(["separable", "class token", "GRU"], CASES))
def test_a_clipped_norm_on_cores(rng, tmp_path, name):
    """A step with the norm of all gradients has the golden model's bits, with weights of groups, rows of positions and biases."""
    training, cores = _loaded(rng, name, tmp_path), int(rng.integers(1, 3))
    training = ModelWriter(training).with_updates(training)
    optimizer = rng.choice([Sgd(0.5, 0.1, clip_norm=0.1), Adam(clip_norm=0.1)])
    config = Config(n=int(rng.choice([2, 4, 8])), training=True, ring=cores > 1)
    run_steps(compile_step(training, optimizer, config, 3, cores=cores), training, optimizer, rng)


def test_copies_of_one_value(rng, tmp_path):
    """The gradient of each copy is the sum of the gradients of all, in the golden model and on a core."""
    apart = _loaded(rng, "slope", tmp_path)
    tied = ModelWriter(apart).with_updates(apart)
    (name,) = tied.ties
    number, (x, targets) = [*tied.parameters].index(name), _batch(rng, tied)
    one, other = (step(one, initial_state(one, Sgd()), Sgd(), x, targets, 0.1).gradients[number] for one in (apart, tied))
    assert other.shape == (1, 1, 6) and len(np.unique(other)) == 1
    assert abs(other.flat[0] - one.sum()) < 0.05 * np.abs(one).sum()
    run_steps(compile_step(tied, Sgd(), Config(n=4, training=True), 6), tied, Sgd(), rng)
    each = _loaded(rng, "slopes of channels", tmp_path)
    assert not ModelWriter(each).with_updates(each).ties


@pytest.mark.parametrize("name", OF_OWN_FORM)
def test_own_form_computes_the_same(rng, tmp_path, name):
    """The form for training computes the results of the form for inference, but for rounding."""
    training = _loaded(rng, name, tmp_path)
    (tmp_path / "model.onnx").write_bytes(in_inference_form(onnx.load(tmp_path / "model.onnx")).SerializeToString())
    inference = load_network(tmp_path / "model.onnx")
    x = round_bfloat16(rng.normal(size=(32, inference.input_size)))
    assert [one.terms for one in training.stages] != [one.terms for one in inference.stages]
    close(run_graph(training, x), run_graph(inference, x))


@pytest.mark.parametrize("name", OF_OWN_FORM)
def test_fit_of_a_file(rng, tmp_path, name):
    """The file gets the trained weights, and is read as before for inference."""
    path = OF_OWN_FORM[name](rng).save(tmp_path)
    model, start = tpu.load(path), onnx.load(path)
    before = model.network
    x, y = rng.normal(size=(32, before.input_size)).astype(np.float32), rng.integers(0, 5, 32)
    done = model.fit(x, y, epochs=2, learning_rate=0.01, check_steps=1, core=Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0 and done.own_form
    trained = onnx.load(model.network.origin.path)
    assert trained.metadata_props == start.metadata_props and trained.graph.node == start.graph.node
    settings = {one for node in start.graph.node if node.op_type == "Resize" for one in node.input[1:]}
    for one, other in zip(start.graph.initializer, trained.graph.initializer):
        assert (one == other) == (one.name in settings), one.name
    close(model.predict(x), reference(model.network.origin.path, x.reshape(-1, *before.input_shape)))
