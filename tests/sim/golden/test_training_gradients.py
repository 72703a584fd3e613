"""Tests of single gradient rules of the golden model. `test_training_definition.py` compares whole steps bit for bit, and the
tests of `sim/autodiff` compare the rules with finite differences."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.results import add_sums_gradient
from amaranth_tpu.sim.autodiff.stages import identity
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden import sums as sums_module
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.golden.steps import run_step
from amaranth_tpu.sim.golden.sums import Sums
from amaranth_tpu.sim.golden.training import cross_entropy, initial_state, one_hot, step
from amaranth_tpu.sim.golden.windows import Convolution
from amaranth_tpu.sim.ir.graph import Graph, dense_chain
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.stage import NOWHERE, Pool, Stage, Tensor
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked
from trainable_graphs import random_trainable_graph


def test_targets_in_the_models_order(rng):
    graph = random_trainable_graph(rng, kinds=(), classes=5)
    order = rng.permutation(5)
    plain, turned = with_parameters(graph), with_parameters(replace(graph, output_order=order))
    x, targets = random_values(rng, (4, graph.input_size)), one_hot(rng.integers(0, 5, 4), 5)
    one = step(plain, initial_state(plain, Sgd()), Sgd(), x, targets, 0.1)
    two = step(turned, initial_state(turned, Sgd()), Sgd(), x, targets[:, order], 0.1)
    assert np.array_equal(one.logits[:, order], two.logits)
    assert one.loss == pytest.approx(two.loss) and all(map(np.array_equal, one.gradients, two.gradients))


def test_a_step_does_not_depend_on_blocks(rng, monkeypatch):
    graph = with_parameters(random_trainable_graph(rng))
    state, optimizer = initial_state(graph, Sgd()), Sgd()
    classes = graph.output_size
    x, targets = random_values(rng, (7, graph.input_size)), one_hot(rng.integers(0, classes, 7), classes)
    one = step(graph, state, optimizer, x, targets, 0.1)
    monkeypatch.setattr("amaranth_tpu.sim.golden.sums._BLOCK", 1)
    two = step(graph, state, optimizer, x, targets, 0.1)
    assert all(map(np.array_equal, one.state.masters, two.state.masters))


def test_last_gradient_is_probabilities_minus_targets():
    """The gradient of the logits is probabilities minus targets: logits 0 and ln 3 have the probabilities 1/4 and 3/4."""
    logits = np.array([[0, np.log(3)], [np.log(3), 0]], np.float32)
    graph = with_parameters(dense_chain("g", [("a", np.eye(2, dtype=np.float32).astype(bfloat16), None, "none")]))
    targets = np.array([[1, 0], [1, 0]], bfloat16)
    found = step(graph, initial_state(graph, Sgd()), Sgd(), logits, targets, 0.1).tensors[f"gradient of {graph.output}"]
    assert np.allclose(found.reshape(2, 2).astype(float), [[-0.75, 0.75], [-0.25, 0.25]], rtol=2**-7)
    assert cross_entropy(logits, np.array([[1, 0], [1, 0]])) == pytest.approx((np.log(4) + np.log(4 / 3)) / 2)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_targets(share):
    found = one_hot([2, 0], 4, share).astype(float)
    assert np.allclose(found, np.eye(4)[[2, 0]] * (1 - share) + share / 4, rtol=2**-8)


def _through(sums, gradient, mask=None, **fields):
    """Returns the gradient of a stage's sums for the gradient of its output, both bfloat16 (batch, height, width, channels)."""
    network = Graph()
    network.add_input("x", sums.shape[1:])
    network.add_input("g", gradient.shape[1:])
    given = {"x": sums, "g": gradient}
    if mask is not None:
        fields["times"] = network.add_input("mask", mask.shape[1:], is_mask=True)
        given["mask"] = mask
    network.add_stage(Stage("s", (identity(network, "x"),), sums.shape[1:3], **fields), sums.shape[3])
    made = add_sums_gradient(network, network.stages[0], (identity(network, "g"),))
    values, _ = run_step(network, given)
    return values[made]


def test_relu_passes_positive_gradients(rng):
    """ReLU passes the gradient only where its result is above 0."""
    result = np.array([0.0, -0.0, 2.0**-126, 1.0, 0.0], bfloat16).reshape(1, 1, 1, 5)
    gradient = random_values(rng, (1, 1, 1, 5))
    found = _through(result, gradient, function=RELU)
    assert np.array_equal(found.view(np.uint16) != 0, [[[[False, False, True, True, False]]]])
    assert np.array_equal(found[..., 2:4], gradient[..., 2:4])
    assert np.array_equal(_through(result, gradient), gradient)


def test_mask_is_applied_before_the_derivative(rng):
    """A gradient is multiplied by the dropout mask and then by the derivative, rounded to bfloat16 each time. After pooling, it
    goes to the position of each window's maximum."""
    third, mask = (np.full((1, 1, 1, 1), value, bfloat16) for value in (1 / 3, 4 / 3))
    function = Function("leaky_relu", (0.59375,))
    slope, sums = bfloat16(0.59375), np.array([-2, -1], bfloat16).reshape(1, 1, 2, 1)
    wanted = bfloat16(np.float32(bfloat16(np.float32(third) * np.float32(mask))) * np.float32(slope))
    other = bfloat16(np.float32(bfloat16(np.float32(third) * np.float32(slope))) * np.float32(mask))
    assert wanted != other and _through(sums[:, :, :1], third, mask=mask, function=function) == wanted
    found = _through(sums, third, mask=mask, function=function, pool=Pool((1, 2), (1, 1), (1, 2)))
    assert found.reshape(-1).tolist() == [0, wanted]


def test_derivative_is_evaluated_at_the_rounded_sums(rng):
    """A derivative is evaluated at the sums rounded to bfloat16, here for tanh between bfloat16 numbers."""
    first, second = np.ones((1, 1, 1, 1), bfloat16), np.ones((1, 1, 1, 2), bfloat16)
    inner = GivenStage("one", "a", (GivenTerm("x", first),), bias=np.float32([0.9 * 2.0**-8]), function=Function("tanh"))
    x = round_bfloat16(rng.uniform(1, 1.2, (20, 1)).astype(np.float32))
    graph = with_parameters(linked("g", Tensor("x", 1), (inner, GivenStage("two", "y", (GivenTerm("a", second),)))))
    result = step(graph, initial_state(graph, Sgd()), Sgd(), x, one_hot(np.zeros(20, int), 2), 0.1)
    found, rounded = result.tensors["a, slope"].reshape(-1, 1).astype(float), x.astype(float)
    assert np.abs(found - 1 / np.cosh(rounded) ** 2).max() < 2.0**-9
    assert np.abs(found - 1 / np.cosh(rounded + 0.9 * 2.0**-8) ** 2).max() > 2.0**-9


def test_the_first_largest_of_a_window(rng):
    """The gradient of pooling goes to the first maximum in the order of y, x, and a maximum of 0 or less gets none. The test
    loops over windows with many ties."""
    (down, across), (height, width) = rng.integers(2, 4, 2).tolist(), rng.integers(1, 4, 2).tolist()
    sums = rng.choice(np.array([-1, -0.0, 0, 1, 2], np.float32), (2, height * down + 1, width * across, 3))
    pool = Pool((down, across), (height, width), (down, across))
    largest, index = Sums().pool(sums, pool, True)
    _, without = Sums().pool(sums, pool, False)
    gradient = random_values(rng, index.shape)
    spread = Sums().spread(gradient, index, pool, sums.shape[1:3])
    expected = np.zeros(sums.shape, bfloat16)
    for b, y, x, c in np.ndindex(index.shape):
        places = [(y * down + wy, x * across + wx) for wy in range(down) for wx in range(across)]
        values = [(float(sums[b, *place, c]), not np.signbit(sums[b, *place, c])) for place in places]
        first = values.index(max(values))
        assert largest[b, y, x, c] == values[first][0] and without[b, y, x, c] == first
        assert index[b, y, x, c] == (first if values[first][0] > 0 else NOWHERE)
        if values[first][0] > 0:
            expected[b, *places[first], c] = gradient[b, y, x, c]
    assert np.array_equal(spread, expected)


def test_weight_gradients_add_up_in_order(rng):
    """Weight gradients are summed in ascending order of (sample, y, x), which values of very different sizes reveal."""
    values = round_bfloat16((2.0 ** rng.integers(-12, 12, (3, 5, 5, 1))).astype(np.float32))
    gradient = round_bfloat16((2.0 ** rng.integers(-12, 12, (3, 4, 4, 1)) * rng.choice([-1, 1], (3, 4, 4, 1))).astype(np.float32))
    term = Convolution(random_values(rng, (2, 2, 1, 1)))
    found = Sums().weight_gradient(values, term, gradient)
    for ky, kx in np.ndindex(2, 2):
        total = np.float32(0)
        for b, y, x in np.ndindex(3, 4, 4):
            product = np.float32(values[b, y + ky, x + kx, 0]) * np.float32(gradient[b, y, x, 0])
            total = np.float32(total + product)
        assert found[ky, kx, 0, 0] == total
    total = np.float32(0)
    for value in gradient.reshape(-1):
        total = np.float32(total + np.float32(value))
    assert Sums().bias_gradient(gradient)[0] == total


@pytest.mark.parametrize("kind", ["normal", "tiny", "any"])
def test_gradient_of_an_average_is_a_broadcast(rng, monkeypatch, kind):
    """The gradient of an average, computed as a broadcast, has the bits of a convolution over zero-padded gradients, including
    NaN and signs of zeros."""
    for _ in range(20):
        channels, outputs, (height, width) = int(rng.integers(1, 5)), int(rng.integers(1, 3)), rng.integers(1, 6, 2).tolist()
        height += height == width == 1

        def drawn(*shape):
            values = rng.integers(0, 1 << 16, shape, dtype=np.uint16).view(bfloat16)
            if kind == "any":
                return values
            numbers = rng.normal(size=shape) * (1 if kind == "normal" else 2.0**-62) * (rng.random(shape) < 0.7)
            return np.copysign(numbers, rng.normal(size=shape)).astype(bfloat16)

        weights = drawn(height, width, 1, channels * outputs)
        weights = np.where(np.isfinite(weights.astype(np.float32)), weights, bfloat16(1))
        stride = tuple(rng.integers(1, 3, 2).tolist())  # at most one product if it is not 1
        term = Convolution(weights, stride, groups=channels, padding=(height - 1, width - 1))
        values = drawn(3, 1, 1, channels)
        start = drawn(3, height, width, channels * outputs).astype(np.float32)
        start = start * np.float32(2.0**-62) if kind == "tiny" else start
        found = Sums().add_term(start, values, term)
        with monkeypatch.context() as patch:
            patch.setattr(sums_module, "_broadcast", None)
            patch.setattr(sums_module, "is_broadcast", lambda *_: False)
            expected = Sums().add_term(start, values, term)
        found, expected = ((one + np.float32(0)).view(np.uint32) for one in (found, expected))
        assert (found == expected).all()


def test_average_pooling_in_a_step_takes_no_convolution(monkeypatch):
    """The gradient of GlobalAveragePool is computed without a convolution, whose work would be quadratic in the tensor's size."""
    sizes = []
    true = sums_module.add_term
    monkeypatch.setattr(
        sums_module,
        "add_term",
        lambda sums, values, term: sizes.append(sums.size * term.weights[..., 0].size) or true(sums, values, term),
    )
    term = Convolution(np.full((28, 28, 1, 8), 0.5, bfloat16), groups=8, padding=(27, 27))
    Sums().add_term(np.zeros((2, 28, 28, 8), np.float32), np.ones((2, 1, 1, 8), bfloat16), term)
    assert not sizes
