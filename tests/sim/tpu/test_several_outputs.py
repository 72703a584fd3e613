"""Tests of `fit` and `evaluate` for models with several inputs and outputs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.autodiff.network import step_network
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.frontend.inputs import in_training_form
from amaranth_tpu.sim.frontend.reader import read_model
from amaranth_tpu.sim.golden.training import initial_state, step
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.tpu.evaluation import parse_loss
from amaranth_tpu.sim.tpu.training_data import joint_labels
from onnx_models import Builder, weights
from step_reference import gradient_errors

COUNT = 40
LOSSES, WEIGHTS = ["cross_entropy", "mse", "binary_crossentropy", "huber"], [1, 0.5, 2, 0.25]
SIZES = {"kind": 4, "size": 2, "marks": 3, "angle": 1}
FACTS = {"loss": LOSSES, "loss_weights": WEIGHTS}


def _write(rng, path, names=SIZES, ends=("Softmax", None, "Sigmoid", None)):
    """Writes a model of two vectors, each with a layer of its own, whose sum has a layer for each output. Returns its path."""
    tensors = {"wa": weights(rng, 6, 8), "wb": weights(rng, 5, 8), "ba": weights(rng, 8)}
    nodes = [
        helper.make_node("Gemm", ["a", "wa", "ba"], ["ha"]),
        helper.make_node("MatMul", ["b", "wb"], ["hb"]),
        helper.make_node("Relu", ["hb"], ["rb"]),
        helper.make_node("Add", ["ha", "rb"], ["s"]),
        helper.make_node("Tanh", ["s"], ["r"]),
    ]
    for name, end in zip(names, ends):
        tensors |= {f"w_{name}": weights(rng, 8, SIZES[name]), f"b_{name}": weights(rng, SIZES[name])}
        before = f"{name}_sums" if end else name
        nodes.append(helper.make_node("Gemm", ["r", f"w_{name}", f"b_{name}"], [before]))
        nodes += [helper.make_node(end, [before], [name])] if end else []
    values = {"a": 6, "b": 5, **SIZES}
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in values.items()}
    arrays = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "several", [ends["a"], ends["b"]], [ends[name] for name in names], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture
def path(rng, tmp_path):
    return _write(rng, tmp_path / "several.onnx")


@pytest.fixture
def x(rng):
    return {"a": rng.normal(size=(COUNT, 6)).astype(np.float32), "b": rng.normal(size=(COUNT, 5)).astype(np.float32)}


@pytest.fixture
def y(rng, x):
    marks = (rng.random((COUNT, 3)) < 0.5).astype(np.float32)
    return {
        "kind": x["a"][:, :4].argmax(1),
        "size": rng.normal(size=(COUNT, 2)),
        "marks": marks,
        "angle": 3 * rng.normal(size=COUNT),
    }


def _each(results, labels):
    """Returns the loss of each sample for each output, for logits and numbers side by side."""
    kind, size, marks, angle = np.split(results, np.cumsum([4, 2, 3]), axis=-1)
    of_kind, of_size, of_marks, of_angle = np.split(labels, np.cumsum([4, 2, 3]), axis=-1)
    error = angle - of_angle
    return np.stack(
        [
            np.log(np.exp(kind).sum(-1)) - (kind * of_kind).sum(-1),
            ((size - of_size) ** 2).mean(-1),
            (np.log(1 + np.exp(marks)) - marks * of_marks).mean(-1),
            np.where(abs(error) < 1, error**2 / 2, abs(error) - 0.5)[..., 0],
        ]
    )


def test_gradients(rng, path, x, y):
    """Gradients match finite differences of the weighted sum in binary64, with a factor for each sample."""
    network = read_model(in_training_form(onnx.load(path)), path)
    loss = parse_loss(network, LOSSES, WEIGHTS)
    graph = with_parameters(network, loss, counted=True)
    rows, targets = np.concatenate([x["a"], x["b"]], axis=1)[:6], joint_labels(loss, {n: one[:6] for n, one in y.items()}, 6)
    counted = np.array([[1], [0.5], [2], [1], [0], [1]], np.float32)
    result = step(graph, initial_state(graph, Sgd()), Sgd(), graph.fed(rows), targets, 0.1, counted=counted)
    made = step_network(graph)
    given = graph.arrange_inputs(graph.fed(rows)) | {key: one.initial[None] for key, one in made.parameters.items()}
    gradients = {key: one.reshape(1, *made.tensors[key].shape) for key, one in zip(made.parameters, result.gradients)}

    def weighted(results, labels):
        return np.tensordot(WEIGHTS, _each(results, labels), 1)[..., None]

    found = gradient_errors(
        rng, made, given, targets.reshape(6, 1, 1, -1), gradients, counted.reshape(6, 1, 1, 1), 5, kind=weighted
    )
    assert np.median([*found.values()]) < 0.1 and max(found.values()) < 0.6, found


def test_two_inputs_and_four_outputs(rng, path, x, y):
    """The loss is the weighted sum of the losses, the bits are the core's, and weights of each input stay apart."""
    model = tpu.load(path)
    results = model.predict(x, "onnx")
    logits = np.concatenate([np.log(results["kind"]), results["size"], -np.log(1 / results["marks"] - 1), results["angle"]], 1)
    labels = np.concatenate([np.eye(4)[y["kind"]], y["size"], y["marks"], y["angle"][:, None]], 1)
    losses = _each(logits.astype(float), labels).mean(axis=1)
    before = model.evaluate(x, y, "onnx", **FACTS)
    assert before["loss"] == pytest.approx(losses @ WEIGHTS, rel=0.01)
    assert [before[f"{name}_loss"] for name in SIZES] == pytest.approx(losses.tolist(), rel=0.02)
    assert before["kind_accuracy"] == (results["kind"].argmax(1) == y["kind"]).mean()
    assert before["marks_accuracy"] == ((results["marks"] > 0.5) == y["marks"]).mean()
    given = {"batch_size": COUNT, "learning_rate": 0.02, "core": tpu.Config(n=4), "verbose": False, **FACTS}
    done = model.fit(x, [*y.values()], epochs=12, check_steps=2, validation_data=(x, y), **given)
    assert done.core["mismatched_bits"] == 0 and done.own_form
    assert done.step_losses[0] == pytest.approx(before["loss"], rel=0.05) and done.step_losses[-1] < done.step_losses[0]
    after = model.evaluate(x, y, **FACTS)
    assert {name.removeprefix("val_"): one[-1] for name, one in done.history.items() if name.startswith("val_")} == pytest.approx(
        after, rel=0.02, abs=0.03
    )
    assert after["loss"] == pytest.approx(model.evaluate(x, y, "onnx", **FACTS)["loss"], rel=0.03)
    again = tpu.load(path)
    again.fit(x, y, epochs=12, sample_weight=np.full(COUNT, 1.0), **given)
    assert (again.predict(x)["size"] == model.predict(x)["size"]).all()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"loss": ["mse"]}, "`loss` must have an entry for each output, kind, size, marks, angle, not"),
        ({"loss": "hinge"}, "`loss` must be one of"),
        ({"loss": "mse", "loss_weights": {"kind": 1}}, "`loss_weights` must have an entry for each output"),
        ({"loss": "mse", "loss_weights": [1, 0, 1, 1]}, "`loss_weights` must be numbers above 0, not 0 for size"),
        ({"loss": LOSSES, "y": [1, 2]}, "y: must be a dict of labels for each output, kind, size, marks, angle, or a list"),
        ({"loss": LOSSES, "kind": np.full(COUNT, 4)}, r"y\['kind'\]: label 4 of sample 0 is not a class of the model, 0 to 3"),
        ({"loss": LOSSES, "marks": np.full((COUNT, 3), 2)}, r"y\['marks'\]: a cross-entropy needs labels from 0 to 1"),
        ({"loss": LOSSES, "metrics": ["mae"], "validation_split": 0.5}, "`metrics` are for a model with one output"),
        ({"loss": LOSSES, "class_weight": {0: 1}}, "`class_weight` needs the loss"),
    ],
)
def test_refusals(path, x, y, given, message):
    y = given.pop("y", y | {name: given.pop(name) for name in SIZES if name in given})
    with pytest.raises((tpu.ArgumentError, DataError), match=message):
        tpu.load(path).fit(x, y, verbose=False, **given)


def test_one_output(rng, tmp_path, x, y):
    model = tpu.load(_write(rng, tmp_path / "one.onnx", ["kind"]))
    done = model.fit(x, y["kind"], epochs=3, check_steps=1, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0
    with pytest.raises(tpu.ArgumentError, match="`loss_weights` is for a model with several outputs; leave it out"):
        model.fit(x, y["kind"], loss_weights=[1])


def test_images_as_outputs(rng, tmp_path):
    """Outputs that are images are trained by losses of numbers. The remedy in the message about another loss is followed."""
    b = Builder(["n", 1, 5, 5])
    first, second = (b.node("Conv", ["x", weights(rng, 2, 1, size, size)]) for size in (3, 2))
    path, x = b.save(tmp_path, outputs=[first, second]), rng.normal(size=(32, 1, 5, 5)).astype(np.float32)
    y = {first: rng.normal(size=(32, 2, 3, 3)), second: rng.normal(size=(32, 2, 4, 4))}
    with pytest.raises(ModelError, match=f"output {first} is not a vector of logits; give it another loss, such as mse"):
        tpu.load(path).fit(x, y, loss=["cross_entropy", "mse"], verbose=False)
    model = tpu.load(path)
    done = model.fit(
        x, y, loss="mse", learning_rate=0.02, epochs=30, batch_size=8, check_steps=1, core=tpu.Config(n=4), verbose=False
    )
    assert done.core["mismatched_bits"] == 0
    for name, size in ((first, 3), (second, 2)):  # the kernels of least squares
        places = np.indices((6 - size, 6 - size)).reshape(2, -1).T
        rows = np.concatenate([x[:, 0, a : a + size, c : c + size].reshape(32, -1) for a, c in places])
        wanted = np.concatenate([y[name][:, :, a, c] for a, c in places])
        best = np.linalg.lstsq(rows, wanted, rcond=None)[0]
        ((found, least),) = [(np.mean((model.predict(x)[name] - y[name]) ** 2), np.mean((rows @ best - wanted) ** 2))]
        assert found < least * 1.05 + 0.01


def test_a_step_is_the_rate_times_the_weighted_slopes(rng, path, x, y):
    """The bias of each output moves by the learning rate, times its weight, times the derivative of its mean loss."""
    model, rate = tpu.load(path), 0.25
    results = {name: one.astype(float).reshape(COUNT, -1) for name, one in model.predict(x, "onnx").items()}
    wanted = {name: np.reshape(one, (COUNT, -1)) for name, one in (y | {"kind": np.eye(4)[y["kind"]]}).items()}
    errors = {name: results[name] - wanted[name] for name in SIZES}
    slopes = {"kind": errors["kind"], "size": errors["size"], "marks": errors["marks"] / 3}
    slopes["angle"] = np.clip(errors["angle"], -1, 1)
    before = {one.name: numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    model.fit(x, y, steps=1, batch_size=COUNT, learning_rate=rate, optimizer=tpu.Sgd(0.0), verbose=False, **FACTS)
    after = {one.name: numpy_helper.to_array(one) for one in model.proto().graph.initializer}
    for name, weight in zip(SIZES, WEIGHTS):
        moved = (before[f"b_{name}"] - after[f"b_{name}"]) / rate
        np.testing.assert_allclose(moved, weight * slopes[name].mean(axis=0), rtol=0.05, atol=0.02, err_msg=name)
