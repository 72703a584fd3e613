"""Tests of the rules of differentiation for random small transformers, in binary64 without rounding against finite differences,
and of the distance of the core's results and gradients, in bfloat16, from these."""

import numpy as np
import pytest

from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.compiled_sums import fastest_sums
from amaranth_tpu.sim.golden.steps import run_step
from amaranth_tpu.sim.ir.optimizers import Sgd
from exact_steps import exact_constants, run_exact, run_stages
from graph_steps import inputs_of
from step_networks import first_slots, transformer
from step_reference import gradient_errors


def _network(rng):
    heads, centred = int(rng.integers(1, 4)), bool(rng.integers(2))
    tokens, each, letters = (int(2 * rng.integers(1, most) + 1) for most in (5, 4, 6))
    network = transformer(rng, tokens, heads * each, heads, letters, int(rng.integers(1, 3)), centred)
    for name in [name for name in network.parameters if name.endswith(".k.bias")]:  # Softmax does not depend on them
        network.constants[name] = network.parameters.pop(name).initial
    return network, int(rng.integers(1, 5))


def _given(step, batch, rng):
    given = inputs_of(step, batch, rng) | {name: one.initial[None] for name, one in step.parameters.items()}
    tokens = step.tensors["tokens"]
    letters = rng.integers(0, tokens.channels, (batch, 1, tokens.width))
    given["tokens"] = np.eye(tokens.channels, dtype=np.float32)[letters].astype(bfloat16)
    given[step.counted][0] = 1
    factors = Sgd().factors(0.1, batch, 1)
    given |= {tensor: np.full((1, 1, 1, 1), factors[name], bfloat16) for name, tensor in step.factors.items()}
    return given | first_slots(step)


def _exact(network):
    with exact_constants():
        return make_step(network, Sgd(), counted=True)


def test_rules_without_rounding(rng):
    """Most gradients differ from finite differences by less than 10^-7. A norm of nearly equal numbers is so curved that finite
    differences themselves are wrong by 3 * 10^-5 in one of 200 networks."""
    network, batch = _network(rng)
    step = _exact(network)
    given = _given(step, batch, rng)
    values = run_exact(step, given)
    gradients = {name: values[step.gradients[name]] for name in network.parameters}
    named = {name: given[name] for name in (*network.inputs, *network.parameters)}
    errors = gradient_errors(rng, network, named, given[step.targets], gradients, given[step.counted], count=3)
    assert np.median([*errors.values()]) < 1e-7 and max(errors.values()) < 1e-3, errors


def _on_the_core(rng, sums=None):
    network, batch = _network(rng)
    step, exact = make_step(network, Sgd(), counted=True), _exact(network)
    given = _given(step, batch, rng)
    values, (own,) = run_step(step, given, sums)
    return exact, given | values | own, run_exact(exact, given)


def test_rounding_of_each_stage(rng):
    """Each result of the core, and each gradient, differs by less than 2 % of its norm from the result in binary64 for the same
    operands."""
    exact, values, _ = _on_the_core(rng)
    for stage in exact.stages:
        made = {*stage.operands} - {*exact.constants}
        if stage.output not in values or not made <= {*values}:  # of parameters' updates, not all results are kept
            continue
        wanted = run_stages(exact, [stage], {name: values[name] for name in made})[stage.output]
        assert np.linalg.norm(values[stage.output].astype(float) - wanted) <= 0.02 * np.linalg.norm(wanted), stage.output


@pytest.mark.slow
def test_distribution_in_bfloat16(rng):
    """Distances of the core's gradients from the exact ones, relative to the norm of the exact ones. Results and gradients are
    rounded to bfloat16, and a network that is ill-conditioned enlarges these errors. `pytest -s` prints the figures."""
    each, together = [], []
    for _ in range(60):
        exact, values, wanted = _on_the_core(rng, fastest_sums())
        pairs = [(values[name].astype(float), wanted[name]) for name in map(exact.gradients.get, exact.parameters)]
        distances, lengths = (np.array(norms) for norms in zip(*((np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in pairs)))
        each += [*distances / lengths]
        together.append(np.linalg.norm(distances) / np.linalg.norm(lengths))
    for name, found in (("gradients of a parameter", each), ("gradients of all parameters", together)):
        median, most, worst = np.percentile(found, [50, 90, 100])
        print(f"{name}: {len(found)} distances, median {median:.1%}, 90 % below {most:.1%}, worst {worst:.1%}")
        assert median < 0.03 and most < 0.12, name
