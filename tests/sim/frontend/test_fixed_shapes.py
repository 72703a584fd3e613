"""Tests of shapes that the user gives to inputs, from Python and on the command line, against onnxruntime."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.fixed_shapes import parse_shapes
from amaranth_tpu.sim.ir.errors import ModelError
from command import tpu as run_tpu
from onnx_models import Builder, integers, reference

onnxruntime = pytest.importorskip("onnxruntime")


def image_network(rng):
    """Returns a network whose batch, height and width are open. It reads its own width, as exporters write it."""
    b = Builder(["n", 2, "height", "width"])
    b("Conv", integers(rng, 3, 2, 3, 3, limit=1), integers(rng, 3), strides=[2, 2], pads=[1] * 4)
    values = b("Relu")
    b("Shape")
    width = b.node("Slice", [b.last, np.array([3]), np.array([4])])
    shape = b.node("Concat", [np.array([0, 3, -1]), width], axis=0)
    b.node("Reshape", [values, shape])
    b("Transpose", perm=[0, 2, 1, 3])
    return b


def test_open_height_and_width_are_fixed_and_results_are_those_of_onnx(rng, tmp_path):
    path = image_network(rng).save(tmp_path)
    for size in ((4, 6), (5, 3)):
        x = integers(rng, 1, 2, *size, limit=2)
        model = tpu.load(path, shapes={"x": (1, 2, *size)})
        np.testing.assert_array_equal(model.predict(x), reference(path, x))
    with pytest.raises(ModelError, match=r"--shape x=\?,2,\?,\?"):
        tpu.load(path)


@pytest.mark.parametrize(
    "shape, text",
    [
        ({"y": (1, 2, 4, 4)}, "it has no input 'y'; its inputs are 'x'"),
        ({"x": (1, 3, 4, 4)}, r"input 'x' has the shape \(open, 2, open, open\), so it cannot have the shape \(1, 3, 4, 4\)"),
        ({"x": (1, 2, 4)}, "so it cannot have the shape"),
        ({"x": (1, 2, 0, 4)}, "all sizes must be at least 1"),
    ],
)
def test_wrong_shapes_are_refused(rng, tmp_path, shape, text):
    with pytest.raises(ModelError, match=text):
        tpu.load(image_network(rng).save(tmp_path), shapes=shape)


def speech_network(rng):
    b = Builder([1, 4])
    b.inputs += [helper.make_tensor_value_info("rate", TensorProto.INT64, []), helper.make_tensor_value_info("gain", 1, [])]
    values = b("MatMul", integers(rng, 4, 3, limit=1))
    condition = b.node("Equal", ["rate", np.array(16000)])
    ways = {}
    for way, operator in (("then_branch", "Relu"), ("else_branch", "Neg")):
        out = helper.make_tensor_value_info("out", 1, None)
        ways[way] = helper.make_graph([helper.make_node(operator, [values], ["out"])], way, [], [out])
    b.node("Mul", [b.node("If", [condition], **ways), "gain"])
    return b


@pytest.mark.parametrize("rate, gain", [(16000, 0.5), (8000, 3)])
def test_values_of_scalar_inputs_are_constants(rng, tmp_path, rate, gain):
    path, x = speech_network(rng).save(tmp_path), integers(rng, 1, 4, limit=2)
    for shapes in ({"rate": rate, "gain": gain}, parse_shapes([f"rate={rate}", f"gain={gain}"])):
        model = tpu.load(path, shapes=shapes)
        session = onnxruntime.InferenceSession(path)
        (want,) = session.run(None, {"x": x, "rate": np.array(rate), "gain": np.array(gain, np.float32)})
        np.testing.assert_array_equal(model.predict(x), want)
        np.testing.assert_array_equal(model.predict(x, on="onnxruntime"), want)


@pytest.mark.parametrize(
    "shapes, text",
    [
        ({}, "Equal_1'.*the scalar input 'rate'; give its value, --shape rate=16000 or `shapes`"),
        ({"rate": 0.5, "gain": 1}, "input 'rate' is one number of type int64, so it cannot be 0.5"),
        ({"rate": (1, 2), "gain": 1}, r"cannot be \(1, 2\)"),
        ({"x": 3, "rate": 1, "gain": 1}, "input 'x' is not one number, so it cannot have the value 3"),
    ],
)
def test_wrong_values_of_scalar_inputs_are_refused(rng, tmp_path, shapes, text):
    with pytest.raises(ModelError, match=text):
        tpu.load(speech_network(rng).save(tmp_path), shapes=shapes, strict=True)


def test_scalar_integers_may_be_cast_to_numbers(rng, tmp_path):
    b = Builder([1, 4])
    b.inputs.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
    values = b("MatMul", integers(rng, 4, 3, limit=1))
    b.node("Add", [values, b.node("Cast", ["rate"], to=1)])
    x, rate = integers(rng, 1, 4, limit=2), np.array(3)
    (want,) = onnxruntime.InferenceSession(b.save(tmp_path)).run(None, {"x": x, "rate": rate})
    np.testing.assert_array_equal(tpu.load(tmp_path / "model.onnx").predict({"x": x[None], "rate": rate[None]})[0], want)


def test_texts_of_shapes():
    assert parse_shapes(None) == {}
    assert parse_shapes(["a:0=1,3", "b=c=2", "s="]) == {"a:0": (1, 3), "b=c": (2,), "s": ()}
    assert parse_shapes(["rate=0.5"]) == {"rate": 0.5}
    for texts in (["1,3"], ["x=1,a"], ["=1"], ["x=1", "x=2"], ["x=1.5,2"], ["x=."]):
        with pytest.raises(ModelError):
            parse_shapes(texts)


@pytest.mark.slow
def test_every_command_takes_shapes(rng, tmp_path):
    path, small = str(image_network(rng).save(tmp_path)), ("--preset", "tiny", "--effort", "fast", "--json")
    shape = ("--shape", "x=1,2,4,6")
    run = json.loads(run_tpu("run", "--model", path, *shape, "--simulator", "golden", "--images", "2", "--json").stdout)
    assert run["images"] == 2 and run["against_model"]["error"] is None
    plan = json.loads(run_tpu("sweep", "--model", path, *shape, "--batch", "1", *small).stdout)
    assert plan["points"][0]["cycles"] > 0
    header = tmp_path / "out"
    run_tpu("compile", "--model", path, *shape, "-o", str(header), *small)
    assert "--shape x=1,2,4,6" in (header / "model.h").read_text()
    refused = run_tpu("train", "--model", path, "--shape", "x=1,2,4")
    assert refused.returncode and "cannot have the shape (1, 2, 4)" in refused.stderr


def test_the_only_input_may_be_a_scalar(rng, tmp_path):
    """The sample and the result have no axes, as in the file. The comparison with onnxruntime, which `predict` makes, agrees."""
    b = Builder([])
    b("Relu")
    model, x = tpu.load(b.save(tmp_path)), np.float32(rng.integers(1, 9))
    for made in (model.predict(x), model.run({"x": x}).outputs[b.last]):
        assert np.shape(made) == () and made == x
