"""Tests of `tpu run` with convolutional models, covering the plan, cycles and errors per layer, and cores that lack a feature."""

import numpy as np
import pytest

from command import SMALL, refused
from json_output import printed
from onnx_models import Builder, weights
from suites import slow


@pytest.fixture(scope="module")
def convolutional(tmp_path_factory):
    """Writes a model of 4 x 4 pixels -> convolution and pooling -> dense with 3 outputs, and returns its file."""
    rng = np.random.default_rng(11)
    build = Builder(["batch", 1, 4, 4])
    build("Conv", weights(rng, 6, 1, 3, 3), pads=[1, 1, 1, 1], name="first")
    build("Relu")
    build("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    build("Flatten")
    build("Gemm", weights(rng, 24, 3), np.zeros(3, np.float32), name="second")
    return build.save(tmp_path_factory.mktemp("cnn"))


def test_explain(command, convolutional, digits):
    arguments = ("run", *SMALL, "--pooling", "--model", convolutional, "--images", 10, "--explain")
    plan = printed("plan", command(*arguments, "--json").stdout)
    assert [layer["name"] for layer in plan["layers"]] == ["first", "second"]
    assert [layer["macs"] for layer in plan["layers"]] == [
        10 * 10**2 * 6,
        10 * 24 * 3,
    ]  # 10 of 4 x 3 places along an axis are no padding
    assert sum(layer["cycles"] for layer in plan["layers"]) == plan["cycles"]
    done = command(*arguments)
    for text in ("conv 3x3, max 2x2, relu", "host gathers windows", "activation unit: pooling", "2x2x6", "expected cycles"):
        assert text in done.stdout, done.stdout


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    rng, build = np.random.default_rng(12), Builder(["batch", 16])
    for inputs, outputs in ((16, 12), (12, 3)):
        build("Gemm", weights(rng, inputs, outputs), np.full(outputs, 0.1, np.float32), name=f"dense{outputs}")
        if outputs > 3:
            build("Relu")
    return build.save(tmp_path_factory.mktemp("dense"))


@pytest.mark.parametrize("kind, options", slow(("convolutional", ["--pooling"]), ("dense", [])))
def test_layers(command, kind, options, request, digits):
    path = request.getfixturevalue(kind)
    done = command("run", *SMALL, *options, "--model", path, "--data", digits, "--images", 4, "--layers", "--json")
    assert done.returncode == 0, done.stderr
    figures = printed("run", done.stdout)
    assert figures["mismatched_bits"] == 0 and figures["against_model"]["error"] is None
    layers = figures["layers"]
    assert len(layers) == 2
    assert sum(layer["cycles"] for layer in layers) == figures["cycles"]
    assert sum(layer["busy"] for layer in layers) == figures["busy"]
    for name, cycles in figures["stalls"].items():
        assert sum(layer["stalls"][name] for layer in layers) == cycles
    for layer in layers:
        assert layer["busy"] + sum(layer["stalls"].values()) == layer["cycles"] and min(layer["stalls"].values()) >= 0
        assert 0 < layer["utilisation"] <= 1
        assert 0 < layer["error"]["largest"] < 0.05 * layer["error"]["scale"]
    assert figures["layers_against"].startswith("onnx")


def test_explain_a_dense_network(command):
    done = command("run", "--preset", "tiny", "--explain", "--images", 8)
    assert done.returncode == 0, done.stderr
    assert "dense, relu" in done.stdout and "802,816" in done.stdout


def test_a_core_without_pooling(command, convolutional, digits):
    refused(command("run", *SMALL, "--no-pooling", "--model", convolutional, "--data", digits), "needs a core with pooling")
