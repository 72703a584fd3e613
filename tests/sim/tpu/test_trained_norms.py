"""Tests that scales and shifts of normalizations are trained as weights, and are stored in the model."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.inputs import in_training_form
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.tpu.temporary_file import TemporaryFile
from amaranth_tpu.sim.trainer.new_training import trainable_network
from onnx_models import Builder

INPUTS, HIDDEN, CLASSES, EPSILON = 7, 12, 3, 1e-5
NORMS = ("layer", "rms", "written out", "instance")


def _weights(rng, kind):
    """Returns weights without rounding errors in bfloat16, by name. The last layer follows a ReLU, which needs the shift."""
    size = (3 if kind == "instance" else HIDDEN,)
    shapes = {"first": (INPUTS, HIDDEN), "scale": size, "shift": size, "last": (HIDDEN, CLASSES)}
    drawn = {name: rng.normal(name == "scale", 0.4, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: (one.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for name, one in drawn.items()}


def _write(folder, kind, given):
    """Writes a model with a normalization of a kind in `NORMS`. Returns its path."""
    builder = Builder(("batch", INPUTS), 23 if kind == "rms" else 17)
    names = {name: builder.constant(array, name) for name, array in given.items()}
    source = builder("MatMul", names["first"])
    if kind == "layer":
        builder("LayerNormalization", names["scale"], names["shift"], epsilon=EPSILON)
    elif kind == "instance":
        builder("Reshape", np.array([-1, 3, HIDDEN // 3]))
        builder("InstanceNormalization", names["scale"], names["shift"], epsilon=EPSILON)
        builder("Reshape", np.array([-1, HIDDEN]))
    elif kind == "rms":
        builder("RMSNormalization", names["scale"], epsilon=EPSILON)
    else:
        square = builder.node("Mul", [source, source])
        mean = builder.node("ReduceMean", [square], axes=[-1], keepdims=1)
        root = builder.node("Sqrt", [builder.node("Add", [mean, np.array(EPSILON, np.float32)])])
        builder.node("Mul", [builder.node("Div", [source, root]), names["scale"]])
        builder("Add", names["shift"])
    builder("Relu")
    builder("MatMul", names["last"])
    return builder.save(folder)


def _loss(kind, given, x, y):
    """Returns the mean cross-entropy in binary64."""
    c = (x.astype(float) @ given["first"]).reshape(len(x), -1, HIDDEN // 3 if kind == "instance" else HIDDEN)
    c = c - c.mean(axis=2, keepdims=True) if kind in ("layer", "instance") else c
    scale, shift = (given[name].reshape(1, c.shape[1], -1) for name in ("scale", "shift"))
    z = c / np.sqrt(np.square(c).mean(axis=2, keepdims=True) + EPSILON) * scale
    z = (z + shift if kind != "rms" else z).reshape(len(x), HIDDEN)
    logits = np.maximum(z, 0) @ given["last"]
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y])


def _gradient(kind, given, x, y, name, step=1e-6):
    found = np.zeros(given[name].shape)
    for place in np.ndindex(found.shape):
        moved = np.zeros(found.shape)
        moved[place] = step
        losses = (_loss(kind, given | {name: given[name] + sign * moved}, x, y) for sign in (1, -1))
        found[place] = np.subtract(*losses) / (2 * step)
    return found


@pytest.mark.parametrize("kind", NORMS)
def test_a_step_is_the_gradient(rng, tmp_path, kind):
    """A step of SGD moves scale and shift by the gradient in binary64, with a core, and the file has the moved weights."""
    given, rate = _weights(rng, kind), 1.0
    x, y = rng.normal(size=(100, INPUTS)).astype(np.float32), rng.integers(0, CLASSES, 32)
    groups = (x @ given["first"]).reshape(len(x), -1, HIDDEN // 3 if kind == "instance" else HIDDEN)
    x = x[np.argsort(groups.std(axis=2).min(axis=1))[-32:]]  # four values that are almost equal have rounding errors of any size
    model = tpu.load(_write(tmp_path, kind, given))
    fields = {"optimizer": tpu.Sgd(0.0), "learning_rate": rate, "batch_size": 32, "check_steps": 1, "core": tpu.Config(n=4)}
    assert model.fit(x, y, verbose=False, **fields).core["mismatched_bits"] == 0
    after = {one.name: numpy_helper.to_array(one) for one in model.proto().graph.initializer}
    for name in ("first", "scale", "shift")[: 2 if kind == "rms" else 3]:
        want = _gradient(kind, given, x, y, name)
        assert np.linalg.norm(given[name] - after[name] - rate * want) < 0.3 * np.linalg.norm(want) + 0.02
    assert model.evaluate(x, y)["loss"] == pytest.approx(_loss(kind, after, x, y), abs=0.02)


def test_a_file_never_loses_a_scale(rng, tmp_path):
    """A scale before a ReLU is a constant of the network if the file is not read for training. A written model would have 1 in
    its place, and is refused."""
    with pytest.raises(ModelError, match="LayerNormalization_1.*cannot be written"):
        ModelWriter(with_parameters(load_network(_write(tmp_path, "layer", _weights(rng, "layer")))))


@pytest.mark.parametrize("kind", ["split", "norms"])
def test_biases_of_zeros_are_several(rng, tmp_path, kind):
    """Parts of one initializer, as of the biases of an attention, and shifts of two normalizations are trained apart from each
    other, although all are zeros."""
    b, zeros, x = Builder(["batch", HIDDEN], 17), np.zeros(HIDDEN, np.float32), "x"
    parts = [b.constant(zeros) for _ in range(2)]
    if kind == "split":
        parts = ["first", "second"]
        b.nodes.append(
            helper.make_node("Split", [b.constant(np.zeros(2 * HIDDEN, np.float32)), b.constant([HIDDEN, HIDDEN])], parts)
        )
    for part in parts:
        x = b.node("MatMul", [x, rng.normal(size=(HIDDEN, HIDDEN)).astype(np.float32)])
        x = b.node("Add", [x, part]) if kind == "split" else b.node("LayerNormalization", [x, zeros + 1, part])
        x = b.node("Tanh", [x])
    file = TemporaryFile(in_training_form(b.model()), "zeros")
    network = trainable_network(file.load(), Loss.SQUARED_ERROR)
    assert [one.decays for one in network.parameters.values()].count(False) == 2


def test_norm_over_several_axes(rng, tmp_path):
    """Scales of several axes are refused by name. The remedy has a scale for each channel."""
    x, y = rng.normal(0, 1, (32, 2, 3, 3)).astype(np.float32), rng.integers(0, 3, 32)

    def model(operator, shape, opset, **attributes):
        builder = Builder(("batch", 2, 3, 3), opset)
        builder("Conv", rng.normal(0, 1, (4, 2, 1, 1)).astype(np.float32))
        builder(operator, np.ones(shape, np.float32), np.zeros(shape, np.float32), **attributes)
        builder("Flatten")
        builder("MatMul", rng.normal(0, 0.3, (36, 3)).astype(np.float32))
        return tpu.load(builder.save(tmp_path))

    with pytest.raises(ModelError, match="LayerNormalization.*several axes.*; put a GroupNormalization with one group in its"):
        model("LayerNormalization", (4, 3, 3), 17, axis=1).fit(x, y, steps=1, verbose=False)
    done = model("GroupNormalization", 4, 21, num_groups=1).fit(x, y, check_steps=1, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0 and done.own_form
