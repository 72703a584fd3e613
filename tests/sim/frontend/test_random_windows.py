"""Tests of random convolutions and pools against onnxruntime."""

import numpy as np
import pytest

from amaranth_tpu.sim.ir.stage import span
from onnx_models import Builder, check_graph, weights
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
