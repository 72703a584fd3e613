"""Tests of dropout at any tensor of an object of a framework, with masks as inputs of the core."""

import numpy as np
import onnx
import pytest
from onnx import helper
from test_source import Framework, model_of

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.losses import one_hot
from amaranth_tpu.sim.golden.training import initial_state, step
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.tpu.dropouts import dropout_rate, drops_of, with_masks
from amaranth_tpu.sim.tpu.temporary_file import TemporaryFile
from amaranth_tpu.sim.trainer.new_training import trainable_network
from onnx_models import Builder, close, weights


def _export(own, training):
    """Returns a model of four positions. In training, it drops samples, results before a sum, shares of attention (in a note, as
    PyTorch's exporter), and values with the batch as their second axis."""
    b = Builder(["batch", 4, 6])

    def drop(rate):
        if training:
            b("Dropout", np.array(rate, np.float32), np.array(True))

    drop(0.125)
    x = b.last
    b.node("MatMul", [x, own["first"]])
    drop(0.25)
    b.node("Add", [x, b.last])
    b("Relu")
    y = b.last
    keys, values = (b.node("MatMul", [y, own[name]]) for name in ("keys", "values"))
    b.node("Transpose", [keys], perm=[0, 2, 1])
    b.node("MatMul", [y, b.last])
    b("Softmax", axis=-1)
    if training:
        note = "%a = call_function[target=torch.ops.aten.scaled_dot_product_attention.default](args = (%q, %k, %v, None, 0.5), kw"
        b.nodes[-1].metadata_props.append(onnx.StringStringEntryProto(key="pkg.torch.onnx.fx_node", value=note))
    b.node("MatMul", [b.last, values])
    b("Transpose", perm=[1, 0, 2])
    drop(0.375)
    b("Transpose", perm=[1, 0, 2])
    b("Flatten")
    b("Gemm", own["last"])
    return b.model()


RATES = [0.125, 0.25, 0.5, 0.375]


class Dropping(Framework):
    def __init__(self, rng, folder):
        super().__init__(rng, folder)
        self.weights = {name: weights(rng, 6, 6) for name in ("first", "keys", "values")} | {"last": weights(rng, 24, 5)}

    def export(self, affine=None, training=False):
        return _export(self.weights, training)

    def logits(self, x, masks=(1, 1, 1, 1)):
        x = x * masks[0]
        y = np.maximum(x + x @ self.weights["first"] * masks[1], 0)
        scores = y @ (y @ self.weights["keys"]).swapaxes(1, 2)
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))  # scores of trained weights may exceed 88
        shares = shares / shares.sum(-1, keepdims=True) * masks[2]
        return ((shares @ y @ self.weights["values"]) * masks[3]).reshape(len(x), -1) @ self.weights["last"]


def test_tensors_that_are_dropped(rng, tmp_path):
    net = Dropping(rng, tmp_path)
    plain, training = net.export(), net.export(training=True)
    found = drops_of(training, plain)
    makers = {node.output[0]: node.op_type for node in plain.graph.node} | {"x": "input"}
    assert {(makers[tensor], rate) for tensor, rate in found.items()} == {
        ("input", 0.125),
        ("MatMul", 0.25),
        ("Softmax", 0.5),
        ("Transpose", 0.375),
    }
    training.graph.node.insert(0, helper.make_node("Relu", ["x"], ["more"], "more"))
    assert drops_of(training, plain) is None


def test_logits_with_masks(rng, tmp_path):
    """The golden model multiplies each tensor by its mask, in any layout. In inference, all masks are 1."""
    net = Dropping(rng, tmp_path)
    plain = net.export()
    masked = with_masks(plain, drops_of(net.export(training=True), plain), "Net")
    file = TemporaryFile(masked.model, "net")
    network, rates = masked.network(file.load(keep_softmax=False, shapes={}))
    training = trainable_network(network)
    assert sorted(rate for _, rate in rates) == sorted(RATES) and network.input_shape == (4, 6)
    x = rng.normal(size=(6, 4, 6)).astype(np.float32)
    given = training.fed(x.reshape(6, -1)), one_hot(rng.integers(0, 5, 6), 5), 0.1
    state, scale = initial_state(training, Sgd()), np.abs(net.logits(x)).max()
    close(step(training, state, Sgd(), *given).logits, net.logits(x), tolerance=0.03)
    masks = Dropout(0.0, 1, rates).masks(training, 0, 256)
    for name, rate in rates:
        zeros = {name: np.zeros((6, *masks[name].shape[1:]), masks[name].dtype)}
        wanted = net.logits(x, [float(one != rate) for one in RATES])
        close(step(training, state, Sgd(), *given, zeros).logits, wanted, tolerance=0.03, scale=scale)
        kept = masks[name].astype(np.float32)
        assert abs((kept == 0).mean() - rate) < 0.05 and abs(kept.max() * (1 - rate) - 1) < 2**-8
    assert (masks[rates[0][0]][:, :4, :4] != masks[rates[1][0]][:, :4, :4]).any()


def test_fit_with_masks(rng, tmp_path):
    """A core computes the same bits, the weights go back to the object, and the model is the exported one again."""
    net = Dropping(rng, tmp_path)
    x, y, before = rng.normal(size=(64, 4, 6)).astype(np.float32), rng.integers(0, 5, 64), dict(net.weights)
    model = model_of(net.source(dropout_rate("Net", [0.125, "other", 0.25, 0.375, "dense"])))
    done = model.fit(x, y, check_steps=2, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0
    assert all((net.weights[name] != before[name]).any() for name in before)
    assert len(model.network.inputs) == 1
    close(model.predict(x), net.logits(x), tolerance=0.03)


def test_samples_that_are_no_slices(rng, tmp_path):
    """Values of several samples in one row have no mask. The remedy in the message is followed."""
    b = Builder(["batch", 2, 6])
    b("Reshape", np.array([-1, 6]))
    b("MatMul", weights(rng, 6, 6))
    rows = b.last
    b("Reshape", np.array([-1, 12]))
    b("Gemm", weights(rng, 12, 5))
    with pytest.raises(tpu.ModelError, match=f"Net: it drops values of {rows!r}, without .*; give fit the argument `dropout`"):
        with_masks(b.model(), {rows: 0.5}, "Net")
    b.save(tmp_path)
    tpu.load(tmp_path / "model.onnx").fit(rng.normal(size=(32, 2, 6)), rng.integers(0, 5, 32), dropout=0.5, verbose=False)
