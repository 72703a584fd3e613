"""Tests of the golden model's optimizers against binary64 and hand-computed updates, and of the state after a step."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.initialize import initialize
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.autodiff.updates import add_norm_factor, add_update
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.golden import steps
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.function_tables import table_of
from amaranth_tpu.sim.golden.steps import run_step
from amaranth_tpu.sim.golden.sums import Sums, upper_half
from amaranth_tpu.sim.golden.training import bound_graph, images, initial_state, one_hot, step
from amaranth_tpu.sim.ir.graph import Graph, dense_chain
from amaranth_tpu.sim.ir.inverse_root import InverseRoot, NormFactor
from amaranth_tpu.sim.ir.optimizers import Adam, RmsProp, Sgd
from amaranth_tpu.sim.ir.stage import Pool, Tensor
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked
from trainable_graphs import random_trainable_graph


def _several(optimizer, gradients, rates, batch, master, decays=True):
    step, shape = Graph(), (1, 1, 1, len(master))
    name = step.add_parameter("w", master.reshape(shape[1:]), decays)
    gradient = step.add_tensor("gradient", shape[1:], samples=False, wide=True)
    add_update(step, optimizer, name, name, gradient)
    kept = {name: master.reshape(shape)}
    kept |= {tensor: np.zeros(shape, optimizer.slots[slot]) for slot, tensor in step.slots[name].items()}
    for number, (values, rate) in enumerate(zip(gradients, rates), 1):
        factors = optimizer.factors(rate, batch, number)
        given = {tensor: np.full((1, 1, 1, 1), factors[factor], bfloat16) for factor, tensor in step.factors.items()}
        tensors, _ = run_step(step, kept | given | {gradient: values.reshape(shape)})
        kept = {tensor: tensors[after] for tensor, after in step.state.items()}
    slots = {slot: kept[tensor].reshape(-1) for slot, tensor in step.slots[name].items()}
    return kept[name].reshape(-1), slots


def test_sgd_by_hand():
    """SGD with momentum 1/2, rate 1/4 and batch 2 gives hand-computed values: V = 4, W = 1 - 4/8; then V = 0; then V = 8, W
    decreases by 1."""
    gradients = [np.array([value], np.float32) for value in (4, -2, 8)]
    master, slots = _several(Sgd(0.5), gradients, [0.25] * 3, 2, np.array([1], np.float32))
    assert master[0] == -0.5 and slots["momentum"][0] == 8 and slots["momentum"].dtype == bfloat16


def test_equal_sums_are_computed_once(monkeypatch):
    made, whole = [], steps._Tensors._total
    monkeypatch.setattr(
        steps._Tensors, "_total", lambda self, stage, tensor: made.append(stage.sums) or whole(self, stage, tensor)
    )
    _several(Adam(), [np.array([1], np.float32)], [0.25], 2, np.array([1], np.float32))
    assert len(made) == len({*made}) > 3


def test_sgd_decay_by_hand():
    """A weight decay of 1/2 at batch 2 adds the upper half of W (1 for 1 + 2^-12) to the gradient, but nothing for a bias."""
    master, gradient = np.array([1 + 2**-12], np.float32), [np.array([2], np.float32)]
    after, slots = _several(Sgd(0.0, 0.5), gradient, [0.5], 2, master)
    assert slots["momentum"][0] == 3 and after[0] == 0.25 + 2**-12
    after, slots = _several(Sgd(0.0, 0.5), gradient, [0.5], 2, master, decays=False)
    assert slots["momentum"][0] == 2 and after[0] == 0.5 + 2**-12


def test_clipped_value_by_hand():
    """A limit of 1/2 at batch 2 clips sums of gradients to -1 and 1. With momentum 1/2 and rate 1/4, W = 1 - 1/8, then 1 - 1/8 +
    1/16 from V = -1/2, then W increases by 1/32 from V = -1/4."""
    gradients = [np.array([value], np.float32) for value in (4, -1, 0)]
    master, slots = _several(Sgd(0.5, clip_value=0.5), gradients, [0.25] * 3, 2, np.array([1], np.float32))
    assert master[0] == 1 - 1 / 8 + 1 / 16 + 1 / 32 and slots["momentum"][0] == -0.25


@pytest.mark.parametrize("limits", [{"clip_value": 2.0}, {"clip_norm": 2.0}], ids=["value", "norm"])
def test_limits_above_all_gradients(rng, limits):
    """A limit that no gradient reaches changes an update by the rounding of its factors alone."""
    shape, states = (1, 3, 5), []
    gradient, master = rng.normal(0, 0.1, (1, *shape)).astype(np.float32), rng.normal(size=(1, *shape)).astype(np.float32)
    for optimizer in (Sgd(), Sgd(**limits), Adam(), Adam(**limits)):
        _, tensors, after = _one_step(optimizer, {"w": (master, gradient)}, 4)
        states.append(tensors[after["w"]] - master)
    for one, other in (states[:2], states[2:]):
        np.testing.assert_allclose(other, one, rtol=0.02, atol=1e-5)


def _one_step(optimizer, parameters, batch, rate=1.0):
    """Runs an update of {name: (master, gradient)}. Returns the step, its tensors, and {parameter: result}."""
    step, gradients, values = Graph(), {}, {}
    for name, (master, gradient) in parameters.items():
        step.add_parameter(name, master[0])
        gradients[name] = step.add_tensor(f"gradient of {name}", gradient.shape[1:], samples=False, wide=True)
        values |= {name: master, gradients[name]: gradient}
    factor = add_norm_factor(step, gradients) if optimizer.clip_norm else None
    for name, gradient in gradients.items():
        add_update(step, optimizer, name, name, gradient, factor)
        slots = step.slots[name].items()
        values |= {tensor: np.zeros((1, *step.tensors[name].shape), optimizer.slots[slot]) for slot, tensor in slots}
    factors = optimizer.factors(rate, batch, 1)
    values |= {tensor: np.full((1, 1, 1, 1), factors[name], bfloat16) for name, tensor in step.factors.items()}
    return step, run_step(step, values)[0], {name: step.state[name] for name in parameters}


@pytest.mark.parametrize("scale", [1e-12, 0.1, 1.0, 1e9])
def test_clipped_norm_is_near_binary64(rng, scale):
    """The gradients of all parameters together get the norm 1, in every direction as before, or stay as they are if their norm is
    less. Norms from 1e-12 to 1e9 are within 1.5 %."""
    shapes, batch = {"kernel": (1, 3, 4, 5), "bias": (1, 1, 1, 5), "vector": (1, 1, 7, 1)}, 8
    gradients = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    norm = np.sqrt(sum(np.square(one.astype(float)).sum() for one in gradients.values()))
    given = {name: (np.zeros_like(one), (one / norm * batch * scale).astype(np.float32)) for name, one in gradients.items()}
    _, tensors, after = _one_step(Sgd(0.0, clip_norm=1.0), given, batch)
    for name, one in gradients.items():
        want = -one / norm * min(1, scale)
        np.testing.assert_allclose(tensors[after[name]], want, rtol=0.015, atol=1e-3 * np.abs(want).max())


@pytest.mark.parametrize("limits", [{"clip_value": 0.0}, {"clip_norm": np.inf}, {"clip_value": 1.0, "clip_norm": 1.0}])
def test_limits_are_checked(limits):
    with pytest.raises(ValueError, match="`clip_(value|norm)` (must be above 0|and `clip_norm` exclude)"):
        Sgd(**limits)


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_sgd_is_near_binary64(rng, decay):
    """SGD is near binary64 with the same rounded factors: 0.3 % in the mean of 300 seeds, 0.47 % at most, because the momentum is
    bfloat16."""
    gradients = [rng.normal(size=50).astype(np.float32) for _ in range(20)]
    start, momentum = rng.normal(size=50).astype(np.float32), np.zeros(50)
    exact = start.astype(float)
    share, rate, decayed = (float(bfloat16(factor)) for factor in (0.9, 0.05 / 8, decay * 8))
    for gradient in gradients:
        momentum = share * momentum + gradient + decayed * exact
        exact = exact - rate * momentum
    found, _ = _several(Sgd(0.9, decay), gradients, [0.05] * 20, 8, start)
    assert np.linalg.norm(found - exact) < 0.007 * np.linalg.norm(exact - start)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("batch, second", [(1, 0.99), (64, 0.999), (1000, 0.9)])
def test_adam_is_near_binary64(rng, batch, second, decay):
    """Adam is near AdamW computed in binary64. Gradients from 2^-11 to 2^-4 use both look-ups of its table; the factors are
    rounded to bfloat16."""
    optimizer, size = Adam(0.9, second, decay), 2.0 ** rng.uniform(-11, -4, 200)
    share, second = float(bfloat16(0.9)), 1 - float(bfloat16(1 - second))
    gradients = [(rng.uniform(0.5, 1.5, 200) * rng.choice([-1, 1], 200) * size * batch).astype(np.float32) for _ in range(30)]
    start, one, two = rng.normal(size=200).astype(np.float32), np.zeros(200), np.zeros(200)
    exact, rate = start.astype(float), 2.0**-7
    for number, gradient in enumerate(gradients, 1):
        mean = gradient / batch
        one, two = share * one + (1 - share) * mean, second * two + (1 - second) * mean**2
        exact = exact * (1 - rate * decay)
        exact -= rate * one / (1 - share**number) / (np.sqrt(two / (1 - second**number)))
    found, slots = _several(optimizer, gradients, [rate] * 30, batch, start)
    assert np.linalg.norm(found - exact) < 0.015 * np.linalg.norm(exact - start)
    assert slots["first"].dtype == bfloat16 and slots["second"].dtype == np.float32


def test_adam_in_other_units(rng):
    """Gradients that are 2^9 times as large, in units of 2^9, give the same updates, bit for bit."""
    gradients = [rng.normal(0, 2.0**-6, 30).astype(np.float32) for _ in range(5)]
    start, rates = rng.normal(size=30).astype(np.float32), [2.0**-7] * 5
    one, _ = _several(Adam(), gradients, rates, 1, start)
    other, _ = _several(Adam(unit=2.0**9), [np.float32(2**9) * gradient for gradient in gradients], rates, 1, start)
    assert one.tobytes() == other.tobytes() != start.tobytes()


@pytest.mark.parametrize("second", [0.9, 0.99])
def test_rms_prop_is_near_binary64(rng, second):
    """RMSprop is near its definition in binary64, without corrections of the first steps."""
    size, share = 2.0 ** rng.uniform(-10, -4, 200), 1 - float(bfloat16(1 - second))
    gradients = [(rng.uniform(0.5, 1.5, 200) * rng.choice([-1, 1], 200) * size * 8).astype(np.float32) for _ in range(20)]
    start, moment, rate = rng.normal(size=200).astype(np.float32), np.zeros(200), 2.0**-7
    exact = start.astype(float)
    for gradient in gradients:
        moment = share * moment + (1 - share) * (gradient / 8) ** 2
        exact -= rate * gradient / 8 / np.sqrt(moment)
    found, _ = _several(RmsProp(second=second), gradients, [rate] * 20, 8, start)
    assert np.linalg.norm(found - exact) < 0.015 * np.linalg.norm(exact - start)


def test_table_of_adam():
    """Two look-ups give 1 / sqrt within 0.8 % over 28 binades, and the table is constant beyond both ends."""
    sums = np.float32(2.0) ** np.linspace(-45, 3, 5001, dtype=np.float32)
    beyond = upper_half(sums).astype(np.float32) * np.float32(-(2.0**-14))
    table = table_of(InverseRoot())
    both = Sums().looked_up(sums, table).astype(float) * Sums().looked_up(beyond, table).astype(float)
    exact = np.sqrt(2.0**-20 / np.clip(sums.astype(float), 2.0**-34, 2.0**-6))
    assert np.abs(both / exact - 1).max() < 0.008
    assert InverseRoot().exact(np.array([0.0, 2.0**-20, -0.0, -(2.0**-34), -(2.0**-20)])).tolist() == [128, 1, 1, 1, 2**-7]


def test_table_of_the_norm_factor(rng):
    """One look-up gives min(1, 1 / sqrt(x)) for all x, also 0 and infinity."""
    sums = np.append(np.exp2(rng.uniform(-126, 128, 10_000)), [0, 1, 4, np.inf]).astype(np.float32)
    found = Sums().looked_up(np.append(sums, np.float32(np.nan)), table_of(NormFactor())).astype(float)
    np.testing.assert_allclose(found[:-1], 1 / np.sqrt(np.maximum(sums.astype(float), 1)), rtol=0.57 * 2**-7)
    assert found[-5:-1].tolist() == [1, 1, 0.5, 0] and np.isnan(found[-1])


def test_weight_without_gradient_does_not_change():
    """A weight whose gradient is always 0, as at pixels that are always 0, does not change: Adam does not divide 0 by 0."""
    master, slots = _several(Adam(), [np.zeros(3, np.float32)] * 3, [0.1] * 3, 4, np.ones(3, np.float32))
    assert (master == 1).all() and not slots["first"].any() and not slots["second"].any()


@pytest.mark.parametrize(
    "make, arguments",
    [
        (Sgd, (1.0,)),
        (Sgd, (0.9981,)),  # bfloat16 rounds this to 1
        (Sgd, (-0.1,)),
        (Sgd, (0.9, -1.0)),
        (Adam, (1.0,)),
        (Adam, (0.9981,)),
        (Adam, (0.9, 1.0)),
        (RmsProp, (0.0, 1.0)),
        (Dropout, (1.0,)),
    ],
)
def test_options_out_of_range(make, arguments):
    with pytest.raises(ValueError, match="must be at least 0"):
        make(*arguments)


def _trained(random, optimizer, steps, rate=None, sums=None):
    """Trains a chain of two dense layers. Returns the graph, the states before and after each step, and the results."""
    layers = [("a", random_values(random, (12, 9), 0.3), np.zeros(9, np.float32), "relu")]
    layers.append(("b", random_values(random, (9, 4), 0.3), np.zeros(4, np.float32), "none"))
    graph = with_parameters(dense_chain("g", layers))
    x, labels = random_values(random, (32, 12)), random.integers(0, 4, 32)
    states, results = [initial_state(graph, optimizer)], []
    rate = rate or (0.1 if isinstance(optimizer, Sgd) else 0.01)
    for _ in range(steps):
        results.append(step(graph, states[-1], optimizer, x, one_hot(labels, 4), rate, sums=sums))
        states.append(results[-1].state)
    return graph, states, results


@pytest.mark.parametrize("optimizer", [Sgd(), Adam()], ids=str)
def test_a_step_continues_from_its_state_alone(rng, optimizer):
    """A step from a saved state gives the same bits. A step with an older momentum gives different bits."""
    graph, states, results = _trained(rng, optimizer, 3)
    x, targets = results[-1].tensors["input"].reshape(32, -1), one_hot(np.arange(32) % 4, 4)
    after = step(graph, states[2], optimizer, x, targets, 0.1).state
    again = step(graph, states[2], optimizer, x, targets, 0.1).state
    stale = step(graph, type(states[2])(states[2].masters, states[1].slots, 2), optimizer, x, targets, 0.1).state
    assert all(map(np.array_equal, after.masters, again.masters))
    assert not any(map(np.array_equal, after.masters, stale.masters))


def test_the_forward_pass_takes_upper_halves(rng):
    graph = with_parameters(random_trainable_graph(rng))
    state = initial_state(graph, Sgd(), initialize(graph, 1))
    bound = bound_graph(graph, state)
    for name, master, image in zip(graph.parameters, state.masters, images(graph, state)):
        assert np.array_equal(bound.constants[name], image)
        if name.endswith("bias"):
            assert np.array_equal(image, master)
        else:
            cut = master.view(np.uint32) & np.uint32(0xFFFF0000)
            assert np.array_equal(image.astype(np.float32).view(np.uint32), cut)


def test_masters_are_never_negative_zero(rng):
    """Master weights of -0 become +0, because MATMULs over diagonal tiles add +0."""
    graph = with_parameters(dense_chain("g", [("a", np.full((3, 2), -0.0).astype(bfloat16), np.float32([-0.0, 1]), "none")]))
    assert not any(np.signbit(master).any() for master in initial_state(graph, Sgd()).masters)


def test_products_that_are_zero_have_no_sign():
    found = Sums().product(np.array([-0.0, 0.0, -(2.0**-100), 3], bfloat16), np.array([2, -2, 2.0**-100, -0.5], bfloat16))
    assert np.array_equal(found, np.array([0, 0, 0, -1.5], bfloat16)) and np.signbit(found.astype(float)).tolist() == [0, 0, 0, 1]


def test_fresh_parameters(rng):
    graph = with_parameters(dense_chain("g", [("a", random_values(rng, (200, 300)), np.ones(300, np.float32), "none")]))
    weights, bias = initialize(graph, 7)
    assert weights.std() == pytest.approx(0.1, rel=0.02) and not bias.any()
    assert np.array_equal(weights, initialize(graph, 7)[0]) and not np.array_equal(weights, initialize(graph, 8)[0])


def test_dropout_masks(rng):
    """Dropout zeroes the given share of values and multiplies the others by 4/3. Its masks depend only on seed, step and
    stage."""
    graph, *_ = _trained(rng, Sgd(), 1)
    dropout = Dropout(0.25, seed=5)
    assert dropout.stages(graph) == (0,)
    (mask,) = dropout.masks(graph, 3, 2000).values()
    assert mask.shape == (2000, 1, 1, 9) and mask.dtype == bfloat16
    left = mask.astype(float)
    assert set(np.unique(left)) == {0, float(bfloat16(4 / 3))}
    assert (left == 0).mean() == pytest.approx(0.25, abs=0.015)
    assert np.array_equal(mask, dropout.masks(graph, 3, 2000)[0])
    for other in (dropout.masks(graph, 4, 2000), Dropout(0.25, 6).masks(graph, 3, 2000)):
        assert 0.3 < (other[0] != mask).mean() < 0.45
    assert Dropout(0.0).masks(graph, 0, 4) == {}


def test_dropout_in_a_step(rng):
    """A sample whose hidden results are all dropped contributes no gradient to earlier layers."""
    layers = [("a", random_values(rng, (6, 5)), np.zeros(5, np.float32), "relu"), ("b", random_values(rng, (5, 3)), None, "none")]
    graph = with_parameters(dense_chain("g", layers))
    x, mask = random_values(rng, (2, 6)), np.full((2, 1, 1, 5), 2, bfloat16)
    mask[1] = 0
    both = step(graph, initial_state(graph, Sgd()), Sgd(), x, one_hot([0, 1], 3), 0.1, {0: mask})
    first = step(graph, initial_state(graph, Sgd()), Sgd(), x[:1], one_hot([0], 3), 0.1, {0: mask[:1]})
    assert np.array_equal(both.gradients[0], first.gradients[0])
    assert np.array_equal(both.logits[0], first.logits[0])
    plain = step(graph, initial_state(graph, Sgd()), Sgd(), x[:1], one_hot([0], 3), 0.1)
    assert np.allclose(2 * plain.logits, first.logits, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("pooled", [False, True])
def test_dropout_that_doubles_all(rng, pooled):
    """A dropout mask of 2 everywhere equals doubled weights in the next layer, bit for bit, in logits and earlier gradients."""
    first = GivenStage("conv", "c", (GivenTerm("x", random_values(rng, (2, 2, 3, 5), 0.25)),), (4, 4), function=RELU)
    first = replace(first, pool=Pool((2, 2), (2, 2), (2, 2)) if pooled else None)
    weights = random_values(rng, (*first.result_size, 5, 4), 0.25)  # subnormal shares would become 0 in one of both
    mask, x, targets = np.full((6, *first.result_size, 5), 2, bfloat16), random_values(rng, (6, 75)), one_hot(np.arange(6) % 4, 4)
    results = []
    for masks, factor in (({0: mask}, 1), ({}, 2)):
        doubled = (weights.astype(np.float32) * factor).astype(bfloat16)
        graph = with_parameters(linked("g", Tensor("x", 3, 5, 5), (first, GivenStage("dense", "y", (GivenTerm("c", doubled),)))))
        results.append(step(graph, initial_state(graph, Sgd()), Sgd(), x, targets, 0.1, masks))
    one, two = results
    assert np.array_equal(one.logits, two.logits) and np.array_equal(one.gradients[0], two.gradients[0])
    assert np.array_equal(one.gradients[1], 2 * two.gradients[1])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("optimizer", [Sgd(), Adam()], ids=["sgd", "adam"])
def test_a_rate_that_is_too_large(rng, optimizer, compiled):
    """If the learning rate is too large, the loss becomes NaN without an exception or a warning."""
    _, _, results = _trained(rng, optimizer, 6, 1e37, fastest_sums(1) if compiled else None)
    assert not np.isfinite([result.loss for result in results]).all()
