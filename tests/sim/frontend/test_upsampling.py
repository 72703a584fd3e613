"""Tests of Resize, ConvTranspose, DepthToSpace and SpaceToDepth against onnxruntime, with exact results for small integers at
random geometries, and in whole networks (`sim/frontend/index/phases.py`)."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.check.interpreters import InterpreterError
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, check_graph, integers, reference, refused, weights


def resize(b, factors, **attributes):
    return b.node("Resize", [b.last, "", np.array([1, 1, *factors], np.float32)], name="resize", **attributes)


def upsample(rng, b, channels):
    """Appends a random upsampling operator on (batch, channels, height, width); `channels` must be a multiple of 4. Returns the
    new number of channels."""
    kind = rng.integers(4)
    if kind == 0:
        resize(b, rng.integers(1, 4, 2), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    elif kind == 1:
        b("DepthToSpace", blocksize=2, mode=str(rng.choice(["DCR", "CRD"])))
        return channels // 4
    elif kind == 2:
        b("SpaceToDepth", blocksize=2)
        return channels * 4
    else:
        groups, outputs = int(rng.choice([1, 2])), 4
        stride, kernel, dilation = ([int(v) for v in rng.integers(1, most, 2)] for most in (4, 4, 3))
        reach = [(k - 1) * d for k, d in zip(kernel, dilation)]
        pads = [int(rng.integers(0, min(most, 2) + 1)) for most in (*reach, *reach)]
        more = [int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation)]
        given = integers(rng, channels, outputs // groups, *kernel, limit=1), integers(rng, outputs)
        windows = {"strides": stride, "dilations": dilation, "pads": pads, "output_padding": more}
        b("ConvTranspose", *given, group=groups, name="transposed", **windows)
        return outputs
    return channels


def test_random_geometries(rng, tmp_path):
    """Random upsampling networks give exactly the same results as onnxruntime, or are refused with the node at fault, because a
    border is not a whole block of pixels."""
    accepted = draws = 0
    while accepted < 20:  # of about 45 draws
        draws += 1
        assert draws <= 400
        channels = 4
        b = Builder(["n", channels, *(2 * int(v) for v in rng.integers(2, 5, 2))])
        for _ in range(rng.integers(1, 3)):
            channels = upsample(rng, b, channels)
            if channels % 4:
                break
        if rng.integers(2):
            kernel, stride, pads = rng.integers(1, 4, 2), rng.integers(1, 4, 2), rng.integers(0, 2, 4)
            options = {"strides": stride.tolist(), "pads": pads.tolist(), "name": "after"}
            b("Conv", integers(rng, 3, channels, *kernel, limit=1), integers(rng, 3), **options)
        path, shape = b.save(tmp_path), [d.dim_value for d in b.inputs[0].type.tensor_type.shape.dim[1:]]
        x = integers(rng, 3, *shape, limit=1)
        try:
            wanted = reference(path, x)
        except Exception as error:  # a window that does not fit
            assert "onnxruntime" in type(error).__module__
            continue
        try:
            got = tpu.load(path).predict(x)
        except ModelError as error:
            assert "node '" in str(error) or "it has no layer" in str(error), error
            continue
        accepted += 1
        np.testing.assert_array_equal(got, wanted, err_msg=str(path))


def unet(rng, size=8, channels=(3, 4, 4)):
    """Returns a builder of a U-Net: down twice, up twice (ConvTranspose and Resize), with a skip connection at each level."""
    one, two, three = channels
    b = Builder(["n", 1, size, size])
    b("Conv", weights(rng, one, 1, 3, 3), weights(rng, one), pads=[1] * 4)
    fine = b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    b("Conv", weights(rng, two, one, 3, 3), weights(rng, two), pads=[1] * 4)
    middle = b("Relu")
    b("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    b("Conv", weights(rng, three, two, 3, 3), pads=[1] * 4)
    b("Relu")
    up = b("ConvTranspose", weights(rng, three, two, 2, 2), weights(rng, two), strides=[2, 2])
    b.node("Concat", [up, middle], axis=1)
    b("Conv", weights(rng, two, 2 * two, 3, 3), pads=[1] * 4)
    b("BatchNormalization", *(rng.uniform(0.5, 1.5, two).astype(np.float32) for _ in range(4)))
    b("Relu")
    resize(b, (2, 2))
    b.node("Concat", [fine, b.last], axis=1)
    b("Conv", weights(rng, one, one + two, 3, 3), pads=[1] * 4)
    b("Relu")
    b("Conv", weights(rng, 2, one, 1, 1), weights(rng, 2))
    return b


@pytest.mark.slow
def test_unet(rng, tmp_path):
    x = rng.random((2, 1, 8, 8), dtype=np.float32)
    check_graph(unet(rng, 8).save(tmp_path), x)
    model = tpu.load(tmp_path / "model.onnx")
    assert model.compare(x).error is None
    np.testing.assert_array_equal(model.predict(x, "model", core=tpu.Config(n=4)), model.predict(x))


@pytest.mark.slow
def test_rtl(rng, tmp_path):
    model, x = tpu.load(unet(rng, 4, (1, 2, 2)).save(tmp_path)), rng.random((1, 1, 4, 4), dtype=np.float32)
    core = tpu.Config(n=2, unified_buffer_depth=256, accumulator_depth=32, **PLAIN | {"pooling": True})
    np.testing.assert_array_equal(model.predict(x, "icarus", core=core), model.predict(x))


def test_residual_of_pixels(rng, tmp_path):
    """A tensor stored row by row may be added to an upsampled tensor, which is stored by pixel phase, in either operand order."""
    for turned in (False, True):
        b = Builder(["n", 4, 6, 6])
        plain = b("Conv", weights(rng, 4, 4, 3, 3), pads=[1] * 4)
        b("Conv", weights(rng, 16, 4, 3, 3), pads=[1] * 4, strides=[2, 2])
        b("Relu")
        up = b("DepthToSpace", blocksize=2)
        b.node("Add", [up, plain] if turned else [plain, up])
        b("Relu")
        b("Conv", weights(rng, 2, 4, 3, 3))
        check_graph(b.save(tmp_path), rng.random((2, 4, 6, 6), dtype=np.float32))


def test_sizes_of_a_resize(rng, tmp_path):
    """Resize with sizes instead of scales, its predecessor Upsample, and a Resize of only some axes give the same results as
    onnxruntime."""
    x = integers(rng, 2, 2, 3, 4)
    for opset, shape, inputs, attributes in [
        (13, [2, 2, 3, 4], ["", "", np.array([2, 2, 6, 12])], {}),
        (13, ["n", 2, 3, 4], [np.zeros(0, np.float32), np.array([1, 1, 1, 2], np.float32)], {"mode": "nearest"}),
        (18, ["n", 2, 3, 4], ["", np.array([3, 2], np.float32)], {"axes": [3, 2]}),
        (9, ["n", 2, 3, 4], [np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"}),
        (10, ["n", 2, 3, 4], [np.array([1, 1, 2, 3], np.float32)], {}),
    ]:
        b = Builder(shape, opset=opset)
        b("Upsample" if opset < 10 else "Resize", *inputs, **attributes)
        b("Conv", integers(rng, 3, 2, 2, 2))
        path = b.save(tmp_path)
        np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x), err_msg=str(opset))


@pytest.mark.parametrize(
    "attributes",
    [
        {"auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "SAME_LOWER", "dilations": [2, 1]},
        {"auto_pad": "SAME_LOWER", "group": 2},
        {"output_shape": [6, 8]},
        {"output_shape": [5, 8], "auto_pad": "SAME_UPPER"},
        {"output_shape": [6, 7], "auto_pad": "SAME_LOWER"},
        {"output_shape": [5, 7], "output_padding": [1, 0]},
        {"output_shape": [6, 8], "pads": [1, 1, 0, 0]},  # these pads are ignored
        {"auto_pad": "VALID"},
        {"pads": [1, 0, 0, 1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("kernel", [3, 4])
def test_sizes_of_a_transposed_convolution(rng, tmp_path, attributes, kernel):
    """Sizes of a ConvTranspose are the same as in onnxruntime for all attributes. They are the same as in the onnx package
    except for `output_shape`, which the package does not support."""
    b = Builder(["n", 2, 3, 4])
    outputs = 3 if attributes.get("group", 1) == 1 else 1
    b("ConvTranspose", integers(rng, 2, outputs, kernel, kernel), strides=[2, 2], **attributes)
    path, x = b.save(tmp_path), integers(rng, 2, 2, 3, 4)
    model = tpu.load(path)
    np.testing.assert_array_equal(model.predict(x), reference(path, x))
    if "output_shape" in attributes and "auto_pad" not in attributes:
        with pytest.raises(InterpreterError, match="output_shape without auto_pad"):
            model.compare(x, against="onnx")
    else:
        assert model.compare(x, against="onnx").error is None


def test_transposed_convolution_along_one_axis(rng, tmp_path):
    b = Builder(["n", 2, 5])
    b("ConvTranspose", integers(rng, 2, 3, 3), strides=[2])
    path, x = b.save(tmp_path), integers(rng, 2, 2, 5)
    np.testing.assert_array_equal(tpu.load(path).predict(x), reference(path, x))


@pytest.mark.parametrize(
    "operator, inputs, attributes, words",
    [
        ("Resize", ["", np.array([1, 1, 2, 2], np.float32)], {"mode": "cubic"}, ["mode cubic"]),
        ("Resize", ["", np.array([1, 2, 2, 2], np.float32)], {"mode": "linear"}, ["along the axes [1, 2, 3]"]),
        ("Resize", ["", np.array([1, 1, np.inf, 2], np.float32)], {"mode": "linear"}, ["infinite"]),
        ("Resize", ["", np.array([1, 1, 0.1, 2], np.float32)], {"mode": "linear"}, ["leaves nothing of axis 2"]),
        ("Resize", ["", np.array([1, 1, 2, 2], np.float32)], {"nearest_mode": "ceil"}, ["half_pixel, ceil"]),
        ("Resize", ["", np.array([1, 1, 1.5, 2], np.float32)], {}, ["by 1.5", "whole factors"]),
        ("Resize", ["", np.array([1, 1, 0.5, 1], np.float32)], {}, ["by 0.5", "whole factors"]),
        ("Resize", ["", np.array([2, 1, 1, 1], np.float32)], {}, ["repeats samples"]),
        ("Resize", ["", np.array([1, 2, 2], np.float32)], {}, ["3 scales"]),
        ("Resize", ["", "", np.array([2, 2, 6, 12])], {}, ["fix the batch"]),
        ("Resize", [], {}, ["either scales or sizes"]),
        ("ConvTranspose", [np.ones((3, 2, 2, 2), np.float32)], {}, ["weights of (3, 2, 2, 2)"]),
        ("ConvTranspose", [np.ones((2, 2, 2, 2), np.float32)], {"kernel_shape": [3, 3]}, ["kernel_shape"]),
        (
            "ConvTranspose",
            [np.ones((2, 2, 1, 3), np.float32)],
            {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
            ["read differently"],
        ),
        ("ConvTranspose", [np.ones((2, 2, 3, 3), np.float32)], {"output_padding": [1, 0]}, ["output_padding"]),
        ("ConvTranspose", [np.ones((2, 2, 2, 2), np.float32)], {"pads": [2, 2, 2, 2]}, ["leave nothing"]),
        ("ConvTranspose", [np.ones((2, 2, 2, 2), np.float32), np.ones(3, np.float32)], {}, ["bias of (3)"]),
    ],
)
def test_refused(tmp_path, operator, inputs, attributes, words):
    b = Builder(["n", 2, 3, 4])
    b(operator, *inputs, name="node", **attributes)
    b("Conv", np.ones((1, 2, 1, 1), np.float32))
    refused(b.save(tmp_path), "node 'node'", *words)
