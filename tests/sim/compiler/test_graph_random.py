"""Tests of random layers and networks against onnxruntime."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.stage import span
from graphs import check
from onnx_models import Builder, check_graph, reference, weights
from seeds import seed


def _windows(rng, sizes, dilated=True, smaller=False):
    """Returns random attributes of a window that fits `sizes`. If `smaller`, padding is less than the kernel, as pools
    require."""
    kernel = [int(rng.integers(1, min(5, size) + 1)) for size in sizes]
    dilation = [int(rng.integers(1, 3)) if dilated and (k - 1) * 2 < size else 1 for k, size in zip(kernel, sizes)]
    stride = [int(rng.integers(1, 4)) for _ in sizes]
    attributes = {"kernel_shape": kernel, "strides": stride}
    if dilated:
        attributes["dilations"] = dilation
    mode = ["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"][rng.integers(5)]
    if mode == "NOTSET":
        most = [span(1, s, k, d) - 1 if smaller else 3 for s, k, d in zip(stride, kernel, dilation)]
        if smaller:
            most = [min(m, k - 1) for m, k in zip(most, kernel)]
        attributes["pads"] = [int(rng.integers(0, m + 1)) for m in (*most, *most)]
    elif mode != "VALID" and (max(dilation) > 1 or smaller and any(s > k for s, k in zip(stride, kernel))):
        return _windows(rng, sizes, dilated, smaller)  # onnxruntime interprets this mode differently for pools, or refuses it
    else:
        attributes["auto_pad"] = mode
    return attributes


def _image(rng):
    channels = int(rng.choice([1, 2, 3, 4, 6]))
    sizes = [int(rng.integers(3, 13)) for _ in range(rng.choice([1, 2, 2, 2]))]
    return channels, sizes


def _check(b, rng, shape, folder, **options):
    return check_graph(b.save(folder), rng.normal(size=(2, *shape)).astype(np.float32), **options)


@pytest.mark.parametrize("trial", range(30))
def test_convolution(rng, tmp_path, trial):
    rng = np.random.default_rng([seed(), trial])
    channels, sizes = _image(rng)
    groups = int(rng.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0]))
    outputs = groups * int(rng.integers(1, 4))
    attributes = _windows(rng, sizes)
    b = Builder(["n", channels, *sizes])
    bias = [weights(rng, outputs)] if rng.random() < 0.5 else []
    b("Conv", weights(rng, outputs, channels // groups, *attributes["kernel_shape"]), *bias, group=groups, **attributes)
    _check(b, rng, (channels, *sizes), tmp_path, stages=1)


@pytest.mark.parametrize("trial", range(40))
def test_pools(rng, tmp_path, trial):
    rng = np.random.default_rng([seed(), trial])
    channels, sizes = _image(rng)
    b = Builder(["n", channels, *sizes], opset=19)
    operator = str(rng.choice(["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"], p=[0.4, 0.4, 0.1, 0.1]))
    if rng.random() < 0.5:
        b("Conv", weights(rng, 3, channels, *[1] * len(sizes)), weights(rng, 3))
    if operator.startswith("Global"):
        b(operator)
    else:
        attributes = _windows(rng, sizes, dilated=rng.random() < 0.4, smaller=True)
        attributes["ceil_mode"] = int(rng.random() < 0.4) if "pads" in attributes else 0
        if operator == "AveragePool":
            attributes["count_include_pad"] = int(rng.random() < 0.5)
        b(operator, **attributes)
    _check(b, rng, (channels, *sizes), tmp_path)


class _Network:
    """A network grown from random operators. `values` are (name, (channels, height, width)) of tensors that later operators may
    read."""

    def __init__(self, rng, functions):
        self.rng, self.functions = rng, functions
        self.shape = (int(rng.integers(1, 5)), int(rng.integers(4, 11)), int(rng.integers(4, 11)))
        self.first = self.shape
        self.b = Builder(["n", *self.shape], opset=18)
        self.values = []

    def add(self, operator, *inputs, shape=None, **attributes):
        self.b(operator, *inputs, **attributes)
        self.shape = shape or self.shape
        self.values.append((self.b.last, self.shape))

    def like(self, fits):
        names = [name for name, shape in self.values[:-1] if fits(shape)]
        return names[self.rng.integers(len(names))] if names else None

    def grow(self):
        step = getattr(
            self,
            str(
                self.rng.choice(
                    [
                        "convolution",
                        "convolution",
                        "pool",
                        "normalise",
                        "scale",
                        "function",
                        "function",
                        "residual",
                        "residual",
                        "concat",
                        "through_nhwc",
                        "pad",
                        "cut",
                        "shuffle",
                        "product",
                    ]
                )
            ),
        )
        step()

    def convolution(self, outputs=None):
        c, h, w = self.shape
        groups = int(self.rng.choice([g for g in (1, 1, 1, 2, c) if c % g == 0]))
        outputs = outputs or groups * int(self.rng.integers(1, 5))
        groups = groups if outputs % groups == 0 else 1
        k, p, s = int(self.rng.choice([1, 3])), int(self.rng.integers(2)), int(self.rng.choice([1, 1, 2]))
        if min(h, w) + 2 * p < k:
            return
        bias = [weights(self.rng, outputs)] if self.rng.random() < 0.5 else []
        self.add(
            "Conv",
            weights(self.rng, outputs, c // groups, k, k),
            *bias,
            pads=[p] * 4,
            strides=[s, s],
            group=groups,
            shape=(outputs, (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1),
        )

    def pool(self):
        c, h, w = self.shape
        k, p, s = int(self.rng.integers(2, 4)), int(self.rng.integers(2)), int(self.rng.integers(1, 3))
        if min(h, w) + 2 * p < k:
            return
        self.add(
            str(self.rng.choice(["MaxPool", "MaxPool", "AveragePool"])),
            kernel_shape=[k, k],
            strides=[s, s],
            pads=[p] * 4,
            shape=(c, (h + 2 * p - k) // s + 1, (w + 2 * p - k) // s + 1),
        )

    def normalise(self):
        c = self.shape[0]
        self.add(
            "BatchNormalization",
            weights(self.rng, c),
            weights(self.rng, c),
            weights(self.rng, c),
            1 + self.rng.random(c, dtype=np.float32),
        )

    def scale(self):
        constant = self.rng.normal(size=(self.shape[0], 1, 1) if self.rng.random() < 0.5 else ()).astype(np.float32)
        self.add(str(self.rng.choice(["Add", "Sub", "Mul"])), *((constant, ...) if self.rng.random() < 0.5 else (constant,)))

    def function(self):
        self.add(str(self.rng.choice(self.functions)))

    def residual(self):
        other = self.like(lambda shape: shape == self.shape)
        if other:
            self.add(str(self.rng.choice(["Add", "Sub"])), other)

    def product(self):
        other = self.like(lambda shape: shape == self.shape)
        if other:
            self.add("Mul", other)

    def concat(self):
        axis = int(self.rng.integers(3))
        other = self.like(lambda shape: all(i == axis or shape[i] == self.shape[i] for i in range(3)))
        if other and self.shape[0] < 20:
            extra = dict(self.values)[other][axis]
            self.add("Concat", other, axis=axis + 1, shape=tuple(size + extra * (i == axis) for i, size in enumerate(self.shape)))

    def through_nhwc(self):
        self.b("Transpose", perm=[0, 2, 3, 1])
        self.b("Add", weights(self.rng, self.shape[0]))
        self.b("Relu")
        self.add("Transpose", perm=[0, 3, 1, 2])

    def pad(self):
        before, after = self.rng.integers(0, 3, 2).tolist()
        c, h, w = self.shape
        self.add("Pad", np.array([0, 0, before, after, 0, 0, after, 0]), shape=(c, h + before + after, w + after))

    def cut(self):
        c, h, w = self.shape
        if min(h, w) > 2:
            step = int(self.rng.integers(1, 3))
            self.add(
                "Slice",
                np.array([1, 0]),
                np.array([1 << 40, -1]),
                np.array([2, 3]),
                np.array([step, 1]),
                shape=(c, -(-(h - 1) // step), w - 1),
            )

    def shuffle(self):
        c, h, w = self.shape
        if c % 2 == 0:
            self.b("Reshape", np.array([0, 2, c // 2, h, w]))
            self.b("Transpose", perm=[0, 2, 1, 3, 4])
            self.add("Reshape", np.array([0, c, h, w]))

    def end(self):
        c, h, w = self.shape
        kind = self.rng.integers(4)
        if kind == 0:
            self.b("Flatten")
            self.b("Gemm", weights(self.rng, 5, c * h * w), weights(self.rng, 5), transB=1)
        elif kind == 1:
            self.b("ReduceMean", np.array([2, 3]), keepdims=0)
            self.b("MatMul", weights(self.rng, c, 5))
        elif kind == 2:
            self.b("Transpose", perm=[0, 2, 3, 1])
            self.b("Reshape", np.array([-1, c * h * w]))
            self.b("MatMul", weights(self.rng, c * h * w, 5))


def _accepted(rng, folder):
    """Draws networks until one is accepted, skipping those refused because constants cancel out. Returns `(network, path,
    graph)`."""
    for _ in range(20):
        network = _Network(rng, ("Relu", "Relu", "Sigmoid", "LeakyRelu", "HardSwish"))
        network.convolution()
        for _ in range(rng.integers(2, 9)):
            network.grow()
        network.end()
        path = network.b.save(folder)
        try:
            return network, path, load_network(path)
        except ModelError as error:
            if "cancels out constants" not in str(error):
                raise
    raise AssertionError("20 networks were refused")


@pytest.mark.parametrize("trial", range(30))
def test_networks(tmp_path, trial):
    rng = np.random.default_rng([seed(), trial])
    network, path, graph = _accepted(rng, tmp_path)
    x = rng.normal(size=(3, *network.first)).astype(np.float32)
    if np.abs(reference(path, x)).max() > 1e-3:
        check_graph(path, x)
    if trial % 5 == 0:  # every fifth also as a program, bit for bit
        config = Config(n=4, unified_buffer_depth=2048, accumulator_depth=256, table_lanes=2)
        check(graph, config, 2, rng)
