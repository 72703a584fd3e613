"""Tests of batch normalizations that are trained as weights of the core and go back as layers, with an object of this test."""

import numpy as np
import onnx
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.tpu.batch_norms import BatchNorm
from amaranth_tpu.sim.tpu.source import Source
from amaranth_tpu.sim.tpu.temporary_file import TemporaryFile
from onnx_models import Builder
from suites import slow
from training_runs import CLASSES, INPUTS, clusters

EPSILON, WIDTH = 1e-3, 6


class Normalized:
    """A dense layer without a bias and one with a bias, each with a batch normalization and Relu, and an output layer. A third
    normalization reads the inputs. The last one has neither gamma nor beta."""

    def __init__(self, rng, folder):
        self.folder = folder
        shapes = {"a": (INPUTS, WIDTH), "b": (WIDTH, WIDTH), "c": (WIDTH, CLASSES), "b.bias": (WIDTH,), "c.bias": (CLASSES,)}
        self.weights = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
        for norm, size in ((0, INPUTS), (1, WIDTH), (2, WIDTH)):
            self.weights |= {f"{norm}.mean": rng.normal(0, 1, size).astype(np.float32)}
            self.weights |= {f"{norm}.variance": rng.uniform(0.5, 2, size).astype(np.float32)}
            if norm != 2:
                self.weights |= {f"{norm}.gamma": rng.uniform(0.5, 2, size).astype(np.float32)}
                self.weights |= {f"{norm}.beta": rng.normal(0, 0.5, size).astype(np.float32)}

    def norms(self, fixed):
        own = [[f"{norm}.{kind}" for kind in ("mean", "variance", "gamma", "beta")] for norm in range(3)]
        own[2][2:] = None, None
        frozen = [{*names[2:]} <= {*fixed} for names in own]
        return [BatchNorm(str(norm), *own[norm], EPSILON, 1, is_frozen=frozen[norm]) for norm in range(3)]

    def export(self, affine):
        b, own = Builder(["batch", INPUTS]), self.weights
        for norm, layer in enumerate("abc"):
            scale, shift = affine[str(norm)]
            if norm == 2:
                b("Add", own["b.bias"])
            b("Mul", scale.reshape(1, -1))
            b("Add", shift.reshape(1, -1))
            if norm:
                b("Relu")
            b("MatMul", own[layer])
        b("Add", own["c.bias"])
        return onnx.load(b.save(self.folder))

    def results(self, x, seen=lambda norm, value: None, batch=False):
        own, value = self.weights, x
        for norm, layer in enumerate("abc"):
            value = value + own["b.bias"] if norm == 2 else value
            seen(norm, value)
            mean, variance = (value.mean(0), value.var(0)) if batch else (own[f"{norm}.mean"], own[f"{norm}.variance"])
            value = (value - mean) / np.sqrt(variance + EPSILON) * own.get(f"{norm}.gamma", 1) + own.get(f"{norm}.beta", 0)
            value = (np.maximum(value, 0) if norm else value) @ own[layer]
        return value + own["c.bias"]

    def model(self, fixed=()):
        buffers = [name for name in self.weights if "mean" in name or "variance" in name]
        read, norms = lambda: {name: one.copy() for name, one in self.weights.items()}, self.norms(fixed)
        source = Source("Net", read, self.weights.update, self.export, 0.0, {*buffers, *fixed}, norms)
        file = TemporaryFile(source.model, "net")
        return tpu.Model(load_network(file.path), file=file, source=source)


@pytest.fixture
def net(rng, tmp_path):
    return Normalized(rng, tmp_path)


def _match(net, model, x):
    np.testing.assert_allclose(net.results(x), model.predict(x, "onnx"), rtol=1e-3, atol=1e-3)


def test_layers_go_back(rng, net):
    """After training, and again after a second one, the object computes the model's results. The core has the golden model's
    bits."""
    (x, y), before = clusters(rng, 96), {name: one.copy() for name, one in net.weights.items()}
    model = net.model()
    _match(net, model, x)
    assert all((net.weights[name] == before[name]).all() for name in before)
    for _ in range(2):
        done = model.fit(x, y, learning_rate=0.01, check_steps=1, core=tpu.Config(n=4), verbose=False)
        assert done.core["mismatched_bits"] == 0 and done.own_form
        _match(net, model, x)
    assert all((net.weights[name] != before[name]).any() for name in before)


def test_averages_are_of_the_batches(rng, net):
    """Mean and variance move by a tenth to the statistics of a batch, so that training in the framework can follow."""
    (x, y), before = clusters(rng, 96), {name: one.copy() for name, one in net.weights.items()}
    found = {}
    net.results(x, lambda norm, value: found.update({norm: (value.mean(0), value.var(0, ddof=1))}), batch=True)
    net.model().fit(x, y, batch_size=96, steps=1, verbose=False)
    for norm, statistics in found.items():
        for kind, wanted in zip(("mean", "variance"), statistics):
            moved = 0.9 * before[f"{norm}.{kind}"] + 0.1 * wanted
            np.testing.assert_allclose(net.weights[f"{norm}.{kind}"], moved, rtol=0.02, atol=0.01)


def test_training_starts_normalized(rng, net):
    """The first step has the loss of normalization by the statistics of the samples, however bad the object's own are."""
    x, y = clusters(rng, 96)
    wanted = net.results(x, batch=True)
    net.weights["1.mean"] += 100
    shifted = wanted - wanted.max(1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(y)), y]
    done = net.model().fit(x, y, batch_size=96, steps=1, verbose=False)
    np.testing.assert_allclose(done.step_losses, [losses.mean()], rtol=0.05)


def test_factor_of_zero(rng, net):
    """Layers that start as zeros, as the last one of a residual block often does, learn."""
    (x, y), kernel = clusters(rng, 96), net.weights["a"].copy()
    net.weights["1.gamma"][:2], net.weights["1.beta"][:] = 0, 0.5  # a shift below 0 has no gradient behind a Relu
    model = net.model()
    model.fit(x, y, learning_rate=0.01, verbose=False)
    _match(net, model, x)
    assert (net.weights["1.gamma"] != 0).all() and (net.weights["a"] != kernel).any()


def test_errors_restore_the_statistics(rng, net):
    (x, y), before = clusters(rng, 96), {name: one.copy() for name, one in net.weights.items()}
    model = net.model()
    with pytest.raises(tpu.ArgumentError):
        model.fit(x, y, optimizer="none")
    assert all((net.weights[name] == before[name]).all() for name in before)
    _match(net, model, x)


@pytest.mark.parametrize(
    "fixed", ["1.gamma 1.beta", "b.bias 1.beta", "a 0.gamma 0.beta 1.gamma 1.beta", *slow("a", "0.gamma", "c c.bias")]
)
def test_frozen_weights_stay(rng, net, fixed):
    """Frozen layers and frozen weights before normalizations keep every bit. All others are trained. Frozen normalizations keep
    their mean and variance."""
    (x, y), before = clusters(rng, 96), {name: one.copy() for name, one in net.weights.items()}
    model = net.model(fixed.split())
    done = model.fit(x, y, learning_rate=0.01, check_steps=1, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0
    same = {name for name in before if (net.weights[name] == before[name]).all()}
    statistics = {f"{norm.name}.{kind}" for norm in net.norms(fixed.split()) for kind in ("mean", "variance") if norm.is_frozen}
    assert same == {*fixed.split(), *statistics}
    np.testing.assert_allclose(net.results(x), model.predict(x, "onnx"), rtol=0.05, atol=0.05)


def test_one_channel(rng, tmp_path, monkeypatch):
    """The statistics of one channel are single numbers, which the core computes, too."""
    monkeypatch.setitem(globals(), "WIDTH", 1)
    net, (x, y) = Normalized(rng, tmp_path), clusters(rng, 96)
    model = net.model()
    done = model.fit(x, y, learning_rate=0.01, check_steps=1, core=tpu.Config(n=4), verbose=False)
    assert done.core["mismatched_bits"] == 0
    _match(net, model, x)
