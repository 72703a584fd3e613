"""Tests of images that are larger than the unified buffer: averages, and one position that is repeated at each pixel."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from onnx_models import Builder, close, reference, weights


@pytest.mark.parametrize("channels, height, width", [(8, 17, 13), (24, 7, 6), (3, 70, 9)])
def test_gate_of_a_large_image(rng, tmp_path, channels, height, width):
    """The gate of squeeze and excitation: means over more pixels than the unified buffer has rows, or of many channels whose
    images do not fit together, and a factor with a row for each pixel. No program was found for any of these."""
    b = Builder(["n", channels, height, width])
    image = b("Relu")
    b("GlobalAveragePool")
    b("Conv", weights(rng, channels, channels, 1, 1))
    b.node("Mul", [image, b("HardSigmoid")])
    path, x = b.save(tmp_path), rng.normal(size=(2, channels, height, width)).astype(np.float32)
    model = tpu.load(path, effort="fast")
    run = model.run(x, on="model", core=tpu.Config(n=4, unified_buffer_depth=256, accumulator_depth=64))
    assert run.check().result.mismatched_bits == 0
    close(run.output, reference(path, x))


def test_images_whose_places_descend(rng, tmp_path):
    """The second of two sums over the same images finds them in the opposite order on the chip. This was a traceback."""
    b = Builder(["n", 4, 9, 9])
    b("Mul", weights(rng, 4, 1, 1) * np.float32(1e-19))
    b("Add", weights(rng, 1, 9, 1))
    b("GlobalAveragePool")
    b("Flatten")
    b("Gemm", weights(rng, 8, 4), weights(rng, 8), transB=1)
    x, core = rng.normal(size=(3, 4, 9, 9)).astype(np.float32), tpu.Config(n=2, unified_buffer_depth=128, accumulator_depth=32)
    assert tpu.load(b.save(tmp_path), effort="fast").run(x, on="model", core=core).check().result.mismatched_bits == 0


@pytest.mark.parametrize("kernel, stride, width", [(511, 1, 511), (300, 7, 400), (256, 1, 258), (601, 3, 606)])
def test_maximum_of_a_long_window(rng, tmp_path, kernel, stride, width):
    """Windows of more than 255 positions, which a POOL cannot have: the maximum of maxima of parts. This was a traceback."""
    b = Builder(["n", 3, width])
    b("Conv", weights(rng, 3, 3, 1))
    b("MaxPool", kernel_shape=[kernel], strides=[stride])
    b("Relu")
    b("Conv", weights(rng, 4, 3, 1))
    path, x = b.save(tmp_path), rng.normal(size=(2, 3, width)).astype(np.float32)
    model = tpu.load(path, effort="fast")
    run = model.run(x, on="model", core=tpu.Config(n=4, accumulator_depth=1024))
    assert run.check().result.mismatched_bits == 0
    close(run.output, reference(path, x))
