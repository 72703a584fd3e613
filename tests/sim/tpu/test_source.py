"""Tests of weights on their way from a framework's object to an ONNX model and back, with an object of this test."""

import os
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.tpu.dropouts import dropout_rate
from amaranth_tpu.sim.tpu.exports import export_error, silent
from amaranth_tpu.sim.tpu.source import Source
from amaranth_tpu.sim.tpu.temporary_file import TemporaryFile
from language_models import language_model
from onnx_models import Builder, close, reference
from training_runs import CLASSES, INPUTS, clusters


class Framework:
    """An object with the weights of two dense layers of the same size. Its exporter transposes weights, renames them, and merges
    initializers with equal values, as PyTorch's does. With `norm`, it folds a factor into the second layer. With `slope`, a PReLU
    replaces the ReLU. Samples are first multiplied by `scale`."""

    def __init__(self, rng, folder, norm=False, fails=False, scale=1.0, slope=False):
        self.folder, self.norm, self.fails, self.scale = folder, norm, fails, np.float32(scale)
        self.weights = {
            "a/kernel": rng.normal(0, 0.5, (INPUTS, CLASSES)).astype(np.float32),
            "a/bias": np.zeros(CLASSES, np.float32),
            "b/kernel": rng.normal(0, 0.5, (CLASSES, CLASSES)).astype(np.float32),
            "b/bias": np.zeros(CLASSES, np.float32),
        }
        if norm:
            self.weights["b/factor"] = np.full(CLASSES, 1.5, np.float32)
        if slope:
            self.weights["a/slope"] = np.full(1, 0.3, np.float32)

    def write(self, values):
        self.weights = {name: values[name].copy() for name in self.weights}

    def export(self, affine=None, training=False):
        if self.fails:
            raise ModelError("cannot be exported")
        b, own = Builder(["batch", INPUTS]), self.weights
        if self.scale != 1:
            b("Mul", np.array(self.scale))
        b("Gemm", np.ascontiguousarray(own["a/kernel"].T), own["a/bias"], transB=1)
        b("PRelu", own["a/slope"]) if "a/slope" in own else b("Relu")
        b("Gemm", own["b/kernel"] * own.get("b/factor", np.float32(1)), own["b/bias"])
        model, names = onnx.load(b.save(self.folder)), {}
        for one in list(model.graph.initializer):
            first = names.setdefault(numpy_helper.to_array(one).tobytes(), one.name)
            for node in model.graph.node:
                node.input[:] = [first if name == one.name else name for name in node.input]
            if first != one.name:
                model.graph.initializer.remove(one)
        return model

    def source(self, dropout=0.0, fixed=()):
        return Source("Net", lambda: dict(self.weights), self.write, self.export, dropout, fixed)

    def logits(self, x):
        own = self.weights
        return np.maximum(self.scale * x @ own["a/kernel"] + own["a/bias"], 0) @ own["b/kernel"] + own["b/bias"]


class Added(Framework):
    """Two dense layers that are added."""

    def __init__(self, rng, folder):
        super().__init__(rng, folder)
        self.weights = {f"{layer}/kernel": rng.normal(0, 0.5, (INPUTS, CLASSES)).astype(np.float32) for layer in "ab"}
        self.weights |= {f"{layer}/bias": rng.normal(0, 0.5, CLASSES).astype(np.float32) for layer in "ab"}

    def export(self, affine=None, training=False):
        b = Builder(["batch", INPUTS])
        own = self.weights
        b.node("Add", [b.node("Gemm", ["x", own[f"{layer}/kernel"], own[f"{layer}/bias"]]) for layer in "ab"])
        return onnx.load(b.save(self.folder))

    def logits(self, x):
        return sum(x @ self.weights[f"{layer}/kernel"] + self.weights[f"{layer}/bias"] for layer in "ab")


class Letters:
    """A small GPT with heads of width 6. Its exporter writes the table of embeddings a second time, transposed, for the logits.
    The mask of attention is a buffer, and the factor of attention a constant."""

    def __init__(self, rng, folder):
        self.folder, self._model = folder, language_model(rng, width=12).model()
        arrays = {one.name: numpy_helper.to_array(one) for one in self._model.graph.initializer}
        self.weights = {name: array for name, array in arrays.items() if array.dtype == np.float32 and array.size > 1}
        self.buffers = [name for name, array in arrays.items() if np.isinf(array).any()]

    def write(self, values):
        self.weights = {name: values[name].copy() for name in self.weights}

    def export(self, affine=None, training=False):
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        for one in model.graph.initializer:
            if one.name in self.weights:
                one.CopyFrom(numpy_helper.from_array(self.weights[one.name], one.name))
        (tied,) = (node for node in model.graph.node if node.op_type == "Transpose" and node.input[0] == "table")
        model.graph.initializer.append(numpy_helper.from_array(self.weights["table"].T.copy(), tied.output[0]))
        model.graph.node.remove(tied)
        return model

    def source(self):
        return Source("Letters", lambda: dict(self.weights), self.write, self.export, 0.0, self.buffers)

    def logits(self, ids):
        (self.folder / "own.onnx").write_bytes(self.export().SerializeToString())
        return reference(self.folder / "own.onnx", ids)


def model_of(source):
    file = TemporaryFile(source.model, "net")
    return tpu.Model(load_network(file.path), file=file, source=source)


def test_weights_go_back(rng, tmp_path):
    """After training, the object computes the model's results: its kernels have bfloat16 values, and both biases, which were
    equal zeros in one initializer, have values of their own."""
    net, (x, y) = Framework(rng, tmp_path), clusters(rng, 64)
    assert len(net.export().graph.initializer) == 3  # the biases are merged
    before = dict(net.weights)
    model = model_of(net.source())
    assert all((net.weights[name] == before[name]).all() for name in before)
    np.testing.assert_allclose(model.predict(x, "onnx"), net.logits(x), rtol=1e-4, atol=1e-5)
    model.fit(x, y, epochs=2, learning_rate=0.01)
    for name, array in net.weights.items():
        assert array.shape == before[name].shape and array.dtype == np.float32 and (array != before[name]).mean() > 0.5
        assert "kernel" not in name or not (array.view(np.uint32) & 0xFFFF).any()
    assert (net.weights["a/bias"] != net.weights["b/bias"]).any()
    np.testing.assert_allclose(model.predict(x, "onnx"), net.logits(x), rtol=1e-4, atol=1e-5)
    model.fit(x, y)
    np.testing.assert_allclose(model.predict(x, "onnx"), net.logits(x), rtol=1e-4, atol=1e-5)


def test_constants_buffers_and_tied_weights(rng, tmp_path):
    """The object keeps its constant factors and its masks, and its weights are scaled for them. A weight that the file has twice,
    once transposed, is one weight."""
    net, ids = Letters(rng, tmp_path), rng.integers(0, 6, (48, 5))
    assert len(net.buffers) == 1
    model, before = model_of(net.source()), dict(net.weights)
    for _ in range(2):
        model.fit(ids, np.roll(ids, -1, 1), batch_size=8, learning_rate=0.01)
        np.testing.assert_allclose(model.predict(ids, "onnx"), net.logits(ids), rtol=1e-4, atol=1e-5)
    changed = [name for name in before if (net.weights[name] != before[name]).any()]
    assert set(net.weights) - set(changed) >= set(net.buffers) and "table" in changed and "places" in changed


class Shared(Framework):
    """An object that computes its second layer twice. Its exporter writes the weights of the layer twice, as PyTorch's does."""

    def export(self, affine=None, training=False):
        b, own = Builder(["batch", INPUTS]), self.weights
        b("Gemm", own["a/kernel"], own["a/bias"])
        for _ in range(2):
            b("Tanh")
            b("MatMul", own["b/kernel"])
            b("Add", own["b/bias"])
        return onnx.load(b.save(self.folder))

    def logits(self, x):
        own = self.weights
        values = x @ own["a/kernel"] + own["a/bias"]
        for _ in range(2):
            values = np.tanh(values) @ own["b/kernel"] + own["b/bias"]
        return values


def test_a_layer_that_is_called_twice(rng, tmp_path):
    net, (x, y) = Shared(rng, tmp_path), clusters(rng, 64)
    before, model = dict(net.weights), model_of(net.source())
    done = model.fit(x, y, epochs=2, learning_rate=0.01, check_steps=2, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0
    assert all((net.weights[name] != before[name]).any() for name in before)
    close(model.predict(x), net.logits(x))


@pytest.mark.parametrize("scale", [1 / 255, 1 / 3, 4.02, 1.001])
def test_samples_that_are_scaled(rng, tmp_path, scale):
    """A constant factor of the samples becomes a power of two in the trained model. The object keeps its factor and has scaled
    weights, also if the factor is almost a power of two."""
    net, (x, y) = Framework(rng, tmp_path, scale=scale), clusters(rng, 64)
    model = model_of(net.source())
    for _ in range(2):
        model.fit(x / scale, y, learning_rate=0.01)
        np.testing.assert_allclose(model.predict(x / scale, "onnx"), net.logits(x / scale), rtol=1e-4, atol=1e-4)


def test_other_types_are_refused(rng, tmp_path):
    """Weights that are not float32 run, and the refusal of `fit` names their type."""
    net, (x, y) = Framework(rng, tmp_path), clusters(rng, 64)
    source = Source("Net", lambda: {name: one.astype("f8") for name, one in net.weights.items()}, net.write, net.export, 0.0)
    with pytest.raises(tpu.ModelError, match="its weights are float64; convert it to float32 first, as by module.float()"):
        model_of(source).fit(x, y)
    np.testing.assert_allclose(model_of(source).predict(x, "onnx"), net.logits(x), rtol=1e-4, atol=1e-5)


def test_frozen_weights_stay(rng, tmp_path):
    """Frozen weights keep every bit, the others are trained, and a step on the core has the golden model's bits."""
    net, (x, y) = Framework(rng, tmp_path), clusters(rng, 64)
    before = {name: one.copy() for name, one in net.weights.items()}
    model = model_of(net.source(fixed=["a/kernel", "b/bias"]))
    for _ in range(2):
        done = model.fit(x, y, learning_rate=0.01, check_steps=2, core=tpu.Config(n=4))
        assert done.core["mismatched_bits"] == 0
        same = [name for name in before if (net.weights[name] == before[name]).all()]
        assert same == ["a/kernel", "b/bias"]
        np.testing.assert_allclose(model.predict(x, "onnx"), net.logits(x), rtol=0.02, atol=0.05)


def test_frozen_weights_that_are_combined_are_refused(rng, tmp_path):
    """One of two layers that are added is frozen, and their biases are one on the core. The remedy is to train both."""
    net, (x, y) = Added(rng, tmp_path), clusters(rng, 64)
    with pytest.raises(tpu.ModelError, match="Net: its frozen weights a/bias are combined with trained ones on the core; train"):
        model_of(net.source(fixed=["a/kernel", "a/bias"])).fit(x, y)
    before = net.weights["a/kernel"].copy()
    model = model_of(net.source(fixed=["a/kernel"]))
    model.fit(x, y)
    assert (net.weights["a/kernel"] == before).all()
    np.testing.assert_allclose(model.predict(x, "onnx"), net.logits(x), rtol=0.02, atol=0.02)


def test_a_frozen_network_is_refused(rng, tmp_path):
    net, (x, y) = Framework(rng, tmp_path), clusters(rng, 64)
    with pytest.raises(tpu.ModelError, match="net: all its weights are frozen; make some trainable"):
        model_of(net.source(fixed=[*net.weights])).fit(x, y)


class Gains(Framework):
    """A dense layer whose results are multiplied by a vector before a function."""

    def __init__(self, rng, folder):
        super().__init__(rng, folder)
        self.weights["gain"] = rng.normal(1, 0.1, CLASSES).astype(np.float32)

    def export(self, affine=None, training=False):
        b, own = Builder(["batch", INPUTS]), self.weights
        b("Gemm", own["a/kernel"], own["a/bias"])
        b("Tanh")
        b("Mul", own["gain"])
        b("Tanh")
        b("Gemm", own["b/kernel"], own["b/bias"])
        return onnx.load(b.save(self.folder))


def test_weights_that_stay_constant_are_refused(rng, tmp_path):
    """A factor between two functions is a constant of the network. `fit` refuses it by name, unless it is frozen."""
    net, (x, y) = Gains(rng, tmp_path), clusters(rng, 64)
    with pytest.raises(tpu.ModelError, match="Net: its weights gain are constants of the network, which the core does not"):
        model_of(net.source()).fit(x, y)
    model_of(net.source(fixed=["gain"])).fit(x, y)


@pytest.mark.parametrize("fixed", [(), ["a/slope"]])
def test_slopes(rng, tmp_path, fixed):
    """The slope of a PReLU is trained, unless it is frozen. The model of `predict` has one function for it."""
    net, (x, y) = Framework(rng, tmp_path, slope=True), clusters(rng, 64)
    before, model = dict(net.weights), model_of(net.source(fixed=fixed))
    done = model.fit(x, y, epochs=2, learning_rate=0.01, check_steps=2, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0 and (net.weights["a/slope"] == before["a/slope"]).all() == bool(fixed)
    own, hidden = net.weights, x @ net.weights["a/kernel"] + net.weights["a/bias"]
    wanted = np.where(hidden < 0, hidden * own["a/slope"], hidden) @ own["b/kernel"] + own["b/bias"]
    close(model.predict(x), wanted)
    assert [stage.function.name for stage in model.network.stages] == ["leaky_relu", "none"]


def test_exports_are_silent(capfd):
    """Text from C++ code, which goes past `sys.stdout`, is suppressed too. Afterwards text is written again."""
    with silent():
        os.write(1, b"graph")
        os.write(2, b"graph")
        print("graph")
    os.write(1, b"after")
    assert capfd.readouterr() == ("after", "")


def test_a_constant_in_place_of_a_weight_is_refused(rng, tmp_path):
    """A constant that is added to a bias cannot be trained, because the object has no weight that holds their sum."""
    b, (x, y) = Builder(["batch", INPUTS]), clusters(rng, 64)
    b("Gemm", b.constant(rng.normal(size=(INPUTS, CLASSES)).astype(np.float32), "w"), b.constant(np.ones(CLASSES, "f4"), "b"))
    b("Add", np.arange(CLASSES, dtype=np.float32))
    model = onnx.load(b.save(tmp_path))
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer if one.name in ("w", "b")}

    def export(affine):
        for one in model.graph.initializer:
            if one.name in weights:
                one.CopyFrom(numpy_helper.from_array(weights[one.name], one.name))
        return model

    source = Source("Net", lambda: dict(weights), weights.update, export, 0.0)
    with pytest.raises(tpu.ModelError, match="its operators use parts of its weights, or their sums with constants"):
        model_of(source).fit(x, y)


def test_combined_weights_are_refused_before_training(rng, tmp_path):
    """Weights that the exporter combines still run, but `fit` refuses to train them, and names them."""
    net, (x, y) = Framework(rng, tmp_path, norm=True), clusters(rng, 64)
    model, before = model_of(net.source()), dict(net.weights)
    assert model._source.missing == ("b/kernel", "b/factor")
    wanted = np.maximum(x @ net.weights["a/kernel"], 0) @ (net.weights["b/kernel"] * np.float32(1.5))
    np.testing.assert_allclose(model.predict(x, "onnx"), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(tpu.ModelError, match="Net: trained weights cannot be stored in it: its weights b/kernel, b/factor are"):
        model.fit(x, y)
    assert all((net.weights[name] == before[name]).all() for name in before)
    model.save(tmp_path / "file.onnx")  # the remedy: a file is trained
    tpu.load(tmp_path / "file.onnx").fit(x, y, epochs=1)


def test_untrainable_network_is_refused_for_its_own_cause(rng, tmp_path):
    """No remedy is told for weights that cannot be stored if the network cannot be trained, and so no file of it."""
    net, (x, y) = Framework(rng, tmp_path, norm=True), clusters(rng, 64)
    source = net.source()
    graph = source.model.graph
    graph.node.append(helper.make_node("Reciprocal", [graph.output[0].name], ["inverse"], "odd"))
    graph.output[0].name = "inverse"
    with pytest.raises(tpu.ModelError, match="its function reciprocal can't be trained; use another one, such as tanh$"):
        model_of(source).fit(x, y, loss="mse")


def test_combined_weights_are_reported_at_conversion(rng, tmp_path):
    """The warning names the weights and the remedy. There is none if all weights can be stored."""
    with pytest.warns(UserWarning, match="^Net: trained weights cannot be .* b/kernel, b/factor are .* work; only run it$"):
        Framework(rng, tmp_path, norm=True).source().warn("only run it")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Framework(rng, tmp_path).source().warn("only run it")


def test_an_object_without_weights(rng, tmp_path):
    b, factor = Builder(["batch", INPUTS]), rng.normal(size=(INPUTS, 3)).astype(np.float32)
    b("MatMul", factor)
    model = onnx.load(b.save(tmp_path))
    source = Source("Net", dict, lambda values: None, lambda affine: model, 0.0)
    assert source.missing == ()
    x = rng.normal(size=(3, INPUTS)).astype(np.float32)
    np.testing.assert_allclose(model_of(source).predict(x, "onnx"), x @ factor, rtol=1e-4, atol=1e-5)


def test_export_errors_are_one_line():
    """The message has the first cause, without lines of the exporter's report, and a remedy."""
    try:
        try:
            raise KeyError("\n  svd is unknown.\nmore\n")
        except KeyError as cause:
            raise RuntimeError("Failed to export the model\n\x1b[96mstep 1\n") from cause
    except RuntimeError as error:
        found = str(export_error("Net", error, "PyTorch", "f()"))
    assert found.startswith("Net: PyTorch cannot export it: KeyError: ") and "Failed" not in found and "\n" not in found
    assert found.endswith("; change this part of the model; `f()` shows the whole report")
    guard = ValueError("Could not guard on data-dependent expression Eq(u0, 1)")
    assert str(export_error("Net", guard, "PyTorch", "f()")).endswith("select with torch.where")


def test_errors_name_the_network(tmp_path):
    """The error about a model without a file has its name, and no path of a temporary file."""
    b = Builder(["batch", INPUTS])
    b("Det", name="odd")
    file = TemporaryFile(onnx.load(b.save(tmp_path)), "Net")
    with pytest.raises(ModelError, match="^Net: operator Det, node 'odd': "):
        file.load()


def test_a_failing_exporter_leaves_the_weights(rng, tmp_path):
    net = Framework(rng, tmp_path, fails=True)
    before = dict(net.weights)
    with pytest.raises(ModelError, match="cannot be exported"):
        net.source()
    assert all((net.weights[name] == before[name]).all() for name in before)


def test_dropout_of_the_object(rng, tmp_path, monkeypatch):
    """`fit` takes the object's dropout rate, unless it is given another one."""
    from amaranth_tpu.sim.tpu import fit as module

    net, (x, y), rates = Framework(rng, tmp_path), clusters(rng, 64), []
    original = module.make_plan
    monkeypatch.setattr(module, "make_plan", lambda *a, **kw: rates.append(a[1].dropout) or original(*a, **kw))
    model = model_of(net.source(0.25))
    model.fit(x, y)
    model.fit(x, y, dropout=0)
    assert rates == [0.25, 0]
    refused = model_of(net.source(dropout_rate("Net", ["other", 0.1, "dense"] + [0.2, "dense"])))
    net.fails = True
    with pytest.raises(tpu.ModelError, match="Net: the tensors that .* of rate 0.1, 0.2, drop are not found .* argument `dropou"):
        refused.fit(x, y)
    refused.fit(x, y, dropout=0.1)


@pytest.mark.parametrize(
    "layers, rate",
    [
        (["other", "dense"], 0),
        (["other", 0.5, "dense"], 0.5),  # no hidden dense layer: inputs of the last
        (["other", "dense", 0.5, "dense"], 0.5),
        (["dense", 0.2, "dense", 0.2, "dense", 0.0], 0.2),
        (["dense", 0.2, "dense", "dense"], None),
        (["dense", 0.2, "dense", 0.3, "dense"], None),
        (["other", 0.2, "dense", "dense"], None),
        ([0.2, "dense"], 0.2),
        (["dense", 0.2], None),
    ],
)
def test_dropout_rate(layers, rate):
    found = dropout_rate("Net", layers)
    assert isinstance(found, ModelError) if rate is None else found == rate
    assert isinstance(dropout_rate("Net", layers, elsewhere=True), ModelError)


def test_missing_packages(monkeypatch):
    """Without an exporter's package, the error is one line with the command that installs it."""
    from amaranth_tpu.sim.tpu import keras_models, torch_modules

    monkeypatch.setattr(torch_modules, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ImportError, match=r"^from_torch needs onnxscript: pip install onnxscript$"):
        tpu.from_torch(None, None)
    monkeypatch.setattr(keras_models, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"^from_keras needs keras: pip install keras torch onnxscript$"):
        tpu.from_keras(None)
    for backend, words in (
        ("jax", "needs tf2onnx: pip install tf2onnx"),
        ("numpy", "backend numpy cannot export; set .*KERAS_BA"),
    ):
        keras = SimpleNamespace(backend=SimpleNamespace(backend=lambda backend=backend: backend))
        monkeypatch.setitem(sys.modules, "keras", keras)
        monkeypatch.setattr(keras_models, "find_spec", lambda name: None if name == "tf2onnx" else name)
        with pytest.raises(ImportError, match=words):
            tpu.from_keras(None)
