"""Tests of random models of all supported operators: they are right in golden and on cores, and faults are noticed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.scripts.random_models import __main__ as random_models
from amaranth_tpu.scripts.random_models import perturbed
from amaranth_tpu.scripts.random_models import trial as trials
from amaranth_tpu.scripts.random_models.cores import SIZES
from amaranth_tpu.scripts.random_models.drawing import BLOCKS, Drawing, Value
from amaranth_tpu.scripts.random_models.models import OPSETS, RandomModel, random_model
from amaranth_tpu.scripts.random_models.recurrence import GATES, STATES
from amaranth_tpu.scripts.random_models.trial import REFUSED, RIGHT, TRACEBACK, WRONG, trial
from amaranth_tpu.sim.frontend.apply import supported_operators
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError
from suites import slow


@pytest.mark.parametrize("part", [*range(8), *slow(*range(8, 75))])
def test_random_models_are_right(seed, part):
    """Reads 20 random models, compares them with onnxruntime, and executes a program of each. A fault prints the seed of its
    model; the command `python -m amaranth_tpu.scripts.random_models` repeats it."""
    for number in range(20):
        found = trial(seed + 20 * part + number, SIZES[number % 4 : number % 4 + 1], most=3, best=0.1)
        assert found.outcome in (RIGHT, REFUSED), f"model of seed {found.seed}, {found.operators}: {found.reason}"


def test_model_of_a_seed_is_right(seed):
    """The model of the command with `--count 1 --seed`. A seed that the command found belongs into tests/failed_seeds.txt."""
    found = trial(seed, SIZES)
    assert found.outcome in (RIGHT, REFUSED), f"{found.operators}: {found.reason}"


def _alone(rng, name):
    one = BLOCKS[name]
    g = Drawing(rng, int(rng.choice([opset for opset in OPSETS if opset >= one.opset])), None if rng.random() < 0.7 else 1)
    shapes = {1: (g.width(),), 2: (g.integer(2, 6), g.width()), 3: (g.integer(1, 6), g.integer(2, 7), g.integer(2, 7))}
    shape = shapes[g.choose(*one.ranks)]
    x = g.value("Mul", shape, g.input(*shape), 0.5)
    g.values.append(x)
    made = one.make(g, x)
    g.outputs = list(dict.fromkeys([made.name, *g.outputs])) if made else []
    return g.model() if made else None


@pytest.mark.parametrize("name", BLOCKS)
def test_block_is_accepted(rng, tmp_path, name):
    """The reader accepts each block behind an input; no model is refused for the block itself, but a scaled input is no layer."""
    path, accepted = tmp_path / "model.onnx", 0
    for _ in range(40):
        model = _alone(rng, name)
        if model is not None:
            path.write_bytes(model.SerializeToString())
            try:
                load_network(path)
                accepted += 1
            except ModelError as error:
                if "it has no layer" not in str(error):
                    raise
        if accepted == 2:
            return
    assert accepted, "no random value fits the block"


#: Supported operators that no block draws, with the reason.
LEFT_OUT = {
    **dict.fromkeys(("Scatter", "Upsample"), "not in opsets of today"),
    **dict.fromkeys(("SwiGLU", "TensorScatter"), "not in opsets of onnxruntime; see test_onnx_node_tests.py"),
    "ZipMap": "gives maps, not tensors",
    "ArrayFeatureExtractor": "gives names of classes",
    "IsNaN": "only after a Softmax whose mask hides a row; see test_operator_programs.py",
    "ReduceLogSumExp": "only within a function that no exporter writes; see test_operator_programs.py",
    "Size": "counts the batch; see test_operator_programs.py",
}


def test_blocks_have_every_supported_operator():
    """Random models have every operator that the reader supports for tensors, or it is left out for a reason."""
    missing = {name for group, names in supported_operators().items() if group != "between constants" for name in names}
    left_out = LEFT_OUT.keys() & missing
    for seed in range(1500):
        missing -= set(random_model(seed).operators)
        if missing <= left_out:
            break
    assert missing == left_out


def _linear_model(rng):
    g = Drawing(rng, 18, None)
    x = Value(g.input(5, 6), (5, 6))
    return g, x


@pytest.mark.parametrize("operator, options", [("LSTM", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_layer_in_small_operators_computes_the_same(monkeypatch, rng, operator, options, direction):
    """A recurrent layer in small operators, whose gates can have noise, has the same results without noise."""
    monkeypatch.setattr(perturbed, "_NOISE", 0)
    g, x = _linear_model(rng)
    ways, gates, states = 1 + (direction == "bidirectional"), len(GATES[operator]), STATES[operator]
    weights = [g.weights(ways, gates * 3, size, inputs=size) for size in (6, 3)]
    start = [g.node("Transpose", g.input(ways, 3), perm=[1, 0, 2]) for _ in range(states)]
    arguments = [g.node("Transpose", x, perm=[1, 0, 2]), *weights, g.normal(ways, 2 * gates * 3), None, *start]
    g.outputs = g.nodes_of(operator, arguments, 1 + states, hidden_size=3, direction=direction, **options)
    model, feeds = g.model(), {one.name: rng.normal(size=(2, 5, 6) if one.name == "x0" else (2, ways, 3)) for one in g.inputs}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    for one, two in zip(perturbed.session(model)(feeds), perturbed.Perturbed(model, feeds)(rng)):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_differences_beyond_rounding_are_noticed(rng):
    """Results rounded to bfloat16 are right. Results with two values exchanged, or 4 % off, are not."""
    g, x = _linear_model(rng)
    made = g.grow(g.grow(x, "matrix_product"), "activation")
    g.outputs = [made.name]
    model, feeds = g.model(), {"x0": rng.normal(size=(3, 5, 6)).astype(np.float32)}
    (right,) = perturbed.session(model)(feeds)
    rounded = (right.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert perturbed.first_deviation(model, feeds, {made.name: rounded}) is None
    for wrong in (right[:, ::-1], right + 0.5 * np.abs(right).max()):
        assert "rounding explains" in perturbed.first_deviation(model, feeds, {made.name: wrong})
    assert "shape" in perturbed.first_deviation(model, feeds, {made.name: right[:, :4]})


def _accepted(seed):
    return next(one for one in range(seed, seed + 50) if trial(one, ()).outcome == RIGHT)


def test_wrong_program_is_noticed(monkeypatch, rng):
    """A program that computes other bits than the golden model is wrong."""
    g, x = _linear_model(rng)
    g.outputs, right = [g.grow(x, "matrix_product").name], trials.compile_network
    drawn = RandomModel(g.model(), {"x0": np.ones((2, 5, 6), np.float32)})

    def compiled(network, *arguments):
        (stage,) = network.stages
        bias = network.constants.get(stage.start, np.zeros((1, 1, network.channels(stage)), np.float32))
        changed = network.copied()
        changed.stages = [replace(stage, start=changed.constant("bias", bias + np.float32(1)))]
        return right(changed, *arguments)

    monkeypatch.setattr(trials, "random_model", lambda seed, most: drawn)
    assert trial(1, (4, 8)).outcome == RIGHT
    monkeypatch.setattr(trials, "compile_network", compiled)
    found = trial(1, (4,))
    assert found.outcome == WRONG and "bits differ" in found.reason, found


def test_command(monkeypatch, command, tmp_path, seed):
    """The command counts outcomes. It writes a model that ends in a traceback, and prints how to repeat it."""
    first = _accepted(seed)
    done = command("--count", 1, "--seed", first, "--n", "4", "--json", main=random_models.main)
    found = json.loads(done.stdout)
    assert not done.returncode and found["models"] == found[RIGHT] == 1 and found["seed"] == first
    monkeypatch.setattr(trials, "load_network", lambda path: 1 / 0)
    done = command("--count", 2, "--seed", first, "--folder", tmp_path / "wrong", main=random_models.main)
    assert done.returncode == 1 and "2 tracebacks" in done.stdout and f"--count 1 --seed {first}" in done.stderr
    assert trial(first, ()).outcome == TRACEBACK
    assert (tmp_path / "wrong" / f"{first}.onnx").read_bytes() == random_model(first).model.SerializeToString()
    assert command("--n", "four", main=random_models.main).returncode == 2
