"""Tests that small networks of common kinds are near onnxruntime within bfloat16 rounding, and match the golden model bit for
bit on the instruction-level model and the RTL."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from onnx_models import Builder, close, reference, weights

CORE = tpu.Config(n=4, training=True)


def u_net(rng):
    """Returns a U-Net on 8 x 8 pixels, with a ConvTranspose, a Resize and skip connections, and its input shape."""
    b = Builder(["n", 1, 8, 8], opset=17)

    def block(channels, size, last):
        b.node("Conv", [last, weights(rng, size, channels, 3, 3)], pads=[1, 1, 1, 1])
        return b("Relu")

    one = block(1, 3, "x")
    two = block(3, 4, b("MaxPool", kernel_shape=[2, 2], strides=[2, 2]))
    block(4, 4, b("MaxPool", kernel_shape=[2, 2], strides=[2, 2]))
    up = b("Resize", "", np.array([1, 1, 2, 2], np.float32), mode="nearest")
    block(8, 4, b.node("Concat", [up, two], axis=1))
    up = b("ConvTranspose", weights(rng, 4, 3, 2, 2), strides=[2, 2])
    block(6, 3, b.node("Concat", [up, one], axis=1))
    b("Conv", weights(rng, 2, 3, 1, 1))
    return b, (1, 8, 8)


def mixer(rng):
    """Returns two MLP-Mixer blocks on 4 positions of 6 channels, and the input shape."""
    positions, channels = 4, 6
    b, last = Builder(["n", positions, channels], opset=17), "x"

    def layers(last, size, hidden):
        b.node("MatMul", [last, weights(rng, size, hidden)])
        b("Relu")
        return b("MatMul", weights(rng, hidden, size))

    for _ in range(2):
        moved = layers(b.node("Transpose", [last], perm=[0, 2, 1]), positions, 5)
        last = b.node("Add", [last, b.node("Transpose", [moved], perm=[0, 2, 1])])
        last = b.node("Add", [last, layers(last, channels, 8)])
    b("ReduceMean", axes=[1], keepdims=0)
    b("MatMul", weights(rng, channels, 3))
    return b, (positions, channels)


def gru(rng):
    """Returns a GRU on 4 steps that classifies its last state, and the input shape."""
    steps, inputs, hidden = 4, 5, 6
    b = Builder(["n", steps, inputs], opset=17)
    b("Transpose", perm=[1, 0, 2])
    parameters = (weights(rng, 1, 3 * hidden, size) for size in (inputs, hidden))
    b("GRU", *parameters, weights(rng, 1, 6 * hidden), hidden_size=hidden, linear_before_reset=1)
    b("Gather", np.array(-1), axis=0)
    b("Squeeze", np.array([0]))
    b("Gemm", weights(rng, hidden, 3))
    return b, (steps, inputs)


def transformer(rng, positions=4, channels=8, heads=2, blocks=2):
    """Returns a transformer of `blocks` blocks with attention and two dense layers, each after a LayerNormalization, and the
    input shape."""
    depth = channels // heads
    b, last = Builder(["n", positions, channels], opset=17), "x"

    def normalized(last):
        return b.node("LayerNormalization", [last, 1 + weights(rng, channels), weights(rng, channels)])

    def projection(last, perm):
        b.node("MatMul", [last, weights(rng, channels, channels)])
        b("Add", weights(rng, channels))
        b("Reshape", np.array([0, positions, heads, depth]))
        return b("Transpose", perm=perm)

    for _ in range(blocks):
        inner = normalized(last)
        queries, keys, values = (projection(inner, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        b.node("MatMul", [queries, keys])
        b("Div", np.array(depth**0.5, np.float32))
        b.node("MatMul", [b("Softmax", axis=-1), values])
        b("Transpose", perm=[0, 2, 1, 3])
        b("Reshape", np.array([0, positions, channels]))
        b("MatMul", weights(rng, channels, channels))
        last = b.node("Add", [last, b("Add", weights(rng, channels))])
        b.node("MatMul", [normalized(last), weights(rng, channels, 2 * channels)])
        inner = b("Add", weights(rng, 2 * channels))
        share = b("Mul", np.array(0.5, np.float32)), b.node("Erf", [b.node("Div", [inner, np.array(2**0.5, np.float32)])])
        b.node("Mul", [share[0], b.node("Add", [share[1], np.array(1, np.float32)])])
        b("MatMul", weights(rng, 2 * channels, channels))
        last = b.node("Add", [last, b("Add", weights(rng, channels))])
    normalized(last)
    b("ReduceMean", axes=[1], keepdims=0)
    b("Gemm", weights(rng, channels, 3))
    return b, (positions, channels)


NETWORKS = {"U-Net": u_net, "Mixer": mixer, "GRU": gru, "transformer": transformer}


@pytest.mark.parametrize("kind", NETWORKS)
def test_values(rng, tmp_path, kind):
    b, shape = NETWORKS[kind](rng)
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(3, *shape)).astype(np.float32)
    found = model.compare(x)
    assert found.error is None and found.reading < 1 and found.rounding < 1
    close(model.predict(x), reference(tmp_path / "model.onnx", x), 0.03)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["model", "verilator"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_core(rng, tmp_path, kind, on):
    b, shape = NETWORKS[kind](rng)
    model, x = tpu.load(b.save(tmp_path)), rng.normal(size=(1, *shape)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(x, on, core=CORE), model.predict(x))
