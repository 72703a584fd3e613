"""Tests of models with several inputs and outputs, by name, against onnxruntime, on the models of the core and the RTL."""

import json

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import PLAIN
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.errors import ModelError
from bundles import wrong_bytes
from c_driver import host_of
from command import refused as command_refused
from command import tpu as run_tpu
from onnx_models import Builder, integers, refused, weights
from suites import slow

SMALL = tpu.Config(n=2, unified_buffer_depth=128, accumulator_depth=16, bias_depth=8, **PLAIN)


def ends(b, **shapes):
    """Gives builder `b` the inputs `shapes`, {name: shape}, and returns it."""
    b.inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    return b


def wanted(path, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, feeds)))


def check(path, feeds, on=("golden",), tolerance=0.0, **options):
    """Compares each output with onnxruntime within `tolerance`, on each simulator or model named in `on`. Returns the loaded
    model."""
    model, right = tpu.load(path), wanted(path, feeds)
    for place in on:
        found = model.predict(feeds, place, **options)
        found = found if isinstance(found, dict) else {model.outputs[0].name: found}
        assert set(found) == set(right)
        for name, values in found.items():
            assert values.shape == right[name].shape
            np.testing.assert_allclose(values, right[name], rtol=0, atol=tolerance, err_msg=f"{place} {name}")
    assert model.compare(feeds).error is None
    return model


def step(rng, folder):
    """Writes a step of a recurrent network whose state is an input and an output, and returns the file."""
    b = ends(Builder([]), x=["n", 3], state=["n", 4])
    b.node("Add", [b.node("MatMul", ["x", weights(rng, 3, 4)]), b.node("MatMul", ["state", weights(rng, 4, 4)])])
    state = b("Relu")
    answer = b("Gemm", weights(rng, 4, 2), weights(rng, 2))
    return b.save(folder, outputs=[answer, state])


def feeds_of(rng, count=3):
    return {"x": rng.normal(size=(count, 3)).astype(np.float32), "state": rng.normal(size=(count, 4)).astype(np.float32)}


def test_recurrent_step(rng, tmp_path):
    path, feeds = step(rng, tmp_path), feeds_of(rng)
    model = check(path, feeds, ("golden", "model"), tolerance=0.1, core=SMALL, batch=2)
    assert [value.shape for value in model.inputs] == [(None, 3), (None, 4)]
    assert [value.shape for value in model.outputs] == [(None, 2), (None, 4)]
    theirs = model.predict(feeds, "onnxruntime")
    for name, values in wanted(path, feeds).items():
        np.testing.assert_allclose(theirs[name], values, atol=1e-6)
    rows = np.concatenate([feeds["x"], feeds["state"]], axis=1)  # a plain array has all inputs, concatenated per sample
    for name, values in model.predict(rows).items():
        np.testing.assert_array_equal(values, model.predict(feeds)[name])


@pytest.mark.slow
def test_rtl(rng, tmp_path):
    model, feeds = tpu.load(step(rng, tmp_path)), feeds_of(rng, 2)
    ours, core = model.predict(feeds), model.predict(feeds, "icarus", core=SMALL)
    for name in ours:
        np.testing.assert_array_equal(core[name], ours[name])


def test_two_inputs(rng, tmp_path):
    """Inputs of one image size become channels of one image, and two vector inputs may be subtracted."""
    b = ends(Builder([]), picture=["n", 2, 4, 5], mask=["n", 1, 4, 5])
    b.node("Concat", ["mask", "picture"], axis=1)
    one = b("Conv", integers(rng, 3, 3, 2, 2))
    two = b.node("Conv", ["picture", integers(rng, 3, 2, 2, 2)])
    b.node("Add", [one, two])
    path = b.save(tmp_path)
    check(path, {"picture": integers(rng, 3, 2, 4, 5), "mask": integers(rng, 3, 1, 4, 5)})
    b = ends(Builder([]), x=["n", 5], y=["n", 5])
    b.node("Sub", ["y", "x"])
    b("MatMul", integers(rng, 5, 3))
    check(b.save(tmp_path), {"x": integers(rng, 3, 5), "y": integers(rng, 3, 5)})


def test_slices_of_one_tensor_as_outputs(rng, tmp_path):
    """Two slices of one tensor with a softmax each (left to the host), a plain slice, and the whole tensor may be outputs."""
    b = Builder(["n", 4])
    logits = b("Gemm", weights(rng, 4, 5))
    b.nodes.append(helper.make_node("Split", [logits, b.constant(np.array([2, 3]))], ["one", "two"], "split", axis=1))
    shares = b.node("Softmax", ["one"], axis=1)
    logarithms = b.node("LogSoftmax", ["two"], axis=1)
    path = b.save(tmp_path, outputs=[shares, "two", logarithms, logits])
    check(path, {"x": rng.normal(size=(3, 4)).astype(np.float32)}, tolerance=0.06)


def test_hidden_layer_as_output(rng, tmp_path):
    """A hidden feature map, an ArgMax label and the logits may be outputs of one model."""
    b = Builder(["n", 1, 4, 4])
    features = b("Conv", integers(rng, 2, 1, 3, 3, limit=1))
    b("Relu")
    b("Flatten")
    answer = b("Gemm", integers(rng, 8, 3, limit=1))
    label = b("ArgMax", axis=1, keepdims=0)
    path = b.save(tmp_path, outputs=[features, label, answer], kinds=[TensorProto.FLOAT, TensorProto.INT64])
    core = tpu.Config(n=2, unified_buffer_depth=256, accumulator_depth=16, bias_depth=16, **PLAIN)
    check(path, {"x": integers(rng, 3, 1, 4, 4, limit=1)}, ("golden", "model"), core=core)


def test_large_feature_maps_as_outputs(rng, tmp_path):
    """Several feature maps of one size, with more values than the single-value copy limit, may be outputs."""
    b = Builder(["n", 2, 24, 24])
    one = b("Conv", integers(rng, 3, 2, 1, 1, limit=2))
    two = b.node("Conv", ["x", integers(rng, 4, 2, 1, 1, limit=2)])
    three = b.node("Conv", [one, integers(rng, 4, 3, 2, 2, limit=1)])
    for outputs in ([one, two], [three, two, one]):
        path = b.save(tmp_path, outputs=outputs)
        check(path, {"x": integers(rng, 2, 2, 24, 24, limit=2)})


def test_tiles_of_a_concat_without_weights_take_no_pass(rng, tmp_path):
    """Results of 4 and 4 channels are joined by a pass of each of their four tiles at n = 2, and a pass of the first result that
    begins the sums of the two tiles of the second, not by all 16 pairs of tiles."""
    b = Builder(["n", 6])
    parts = [b.node(function, [b.node("MatMul", ["x", weights(rng, 6, 4)])]) for function in ("Relu", "Identity")]
    b.node("Relu", [b.node("Concat", parts, axis=1)])
    path = b.save(tmp_path)
    model = check(path, {"x": rng.normal(size=(3, 6)).astype(np.float32)}, ("golden", "model"), tolerance=0.06, core=SMALL)
    (join,) = [layer for layer in model.estimate(SMALL, batch=1).layers if layer.shape[-1] == 8]
    assert join.busy == 6


def test_fixed_batch(rng, tmp_path):
    b = ends(Builder([]), x=[2, 3], y=[2, 4])
    b.node("Concat", ["x", "y"], axis=1)
    b("MatMul", integers(rng, 7, 2))
    path = b.save(tmp_path)
    x, y = integers(rng, 4, 3), integers(rng, 4, 4)
    right = np.concatenate([wanted(path, {"x": x[i : i + 2], "y": y[i : i + 2]})[b.last] for i in (0, 2)])
    model = tpu.load(path)
    np.testing.assert_array_equal(model.predict({"x": x, "y": y}), right)
    np.testing.assert_array_equal(model.predict({"x": x, "y": y}, "onnxruntime"), right)


def test_a_wrong_output_is_found(rng, tmp_path):
    """Every output of a model is compared with onnxruntime's, so an error in the second one is found."""
    from dataclasses import replace

    from amaranth_tpu.sim.check.against_model import against_model
    from amaranth_tpu.sim.golden.network import run_network

    network = tpu.load(step(rng, tmp_path)).network
    first, second = network.origin.outputs
    turned = replace(second, place=slice(second.place.start - 1, second.place.stop - 1))
    network = replace(network, origin=replace(network.origin, outputs=(first, turned)))
    rows = rng.normal(size=(3, 7)).astype(np.float32)
    found = against_model(network, rows, run_network(network, rows))
    assert "read wrongly" in found.error and second.name in found.error


def test_bundle_of_several_inputs_and_outputs(rng, tmp_path):
    """In the bundle, inputs form one vector and outputs another; `layout.json` and the header give the position of each
    tensor."""
    network = tpu.load(step(rng, tmp_path)).network
    bundle = make_bundle(network, compile_network(network, SMALL, 2), rng.normal(size=(2, 7)).astype(np.float32))
    assert wrong_bytes(bundle, SMALL) == 0
    layout, header = json.loads(bundle.files["layout.json"]), bundle.files["model.h"].decode()
    inputs = [(part["name"], part["shape"], part["first"], part["values"]) for part in layout["input"]["parts"]]
    assert inputs == [("x", [3], 0, 3), ("state", [4], 3, 4)]
    found = {output.name: output.of(run_network(network, round_bfloat16(bundle.samples))) for output in network.origin.outputs}
    assert len(layout["output"]["parts"]) == len(found) == 2
    for part in layout["output"]["parts"]:
        stretch = slice(part["first"], part["first"] + part["values"])
        np.testing.assert_array_equal(bundle.results[:, stretch].reshape(2, *part["shape"]), found[part["name"]])
        assert f"Values {stretch.start} to {stretch.stop - 1} of a sample's output: {part['name']!r}" in header


@pytest.mark.slow
def test_image_with_a_softmax_of_one_output(rng, tmp_path):
    b = ends(Builder([]), x=["n", 3])
    hidden = b.node("Relu", [b.node("MatMul", ["x", weights(rng, 3, 4)])])
    path = b.save(tmp_path, outputs=[hidden, b.node("Softmax", [b.node("MatMul", [hidden, weights(rng, 4, 2)])])])
    command_refused(run_tpu("compile", "--model", path, "--n", 2, "-o", tmp_path / "c"), "is left to the host")
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_run_with_several_inputs_and_outputs(rng, tmp_path, digits):
    """`tpu run` reads several inputs from one .npz file and writes several outputs to one. `tpu train` refuses such a model."""
    path, feeds = step(rng, tmp_path), feeds_of(rng)
    np.savez(tmp_path / "x.npz", **feeds)
    done = run_tpu(
        "run", "--model", path, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--simulator", "golden", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == 3
    with np.load(tmp_path / "y.npz") as found:
        for name, values in tpu.load(path).predict(feeds).items():
            np.testing.assert_array_equal(found[name], values)
    done = run_tpu("train", "--model", path, "--data", digits, "-o", tmp_path / "t.onnx")
    command_refused(done, "several inputs or outputs")


def test_refused(rng, tmp_path):
    for shapes, words in [
        ({"x": ["n", 3], "y": [2, 3]}, "different batches"),
        ({"x": ["n", 3], "y": [3]}, "the batch as its first axis"),
        ({"x": ["n", 3], "y": ["n", None]}, "only the first size"),
    ]:
        b = ends(Builder([]), **shapes)
        b.node("Add", ["x", "y"])
        b("MatMul", weights(rng, 3, 2))
        refused(b.save(tmp_path), words, "'y'")
    model, feeds = tpu.load(step(rng, tmp_path)), feeds_of(rng)
    for wrong, words in [
        ({"x": feeds["x"]}, "inputs are 'x', 'state', not 'x'"),
        (feeds | {"state": feeds["state"][:2]}, r"input 'state': an array of shape \(2, 4\) does not fit"),
        (feeds["x"], r"\(count, 7\)"),
    ]:
        with pytest.raises(tpu.DataError, match=words):
            model.predict(wrong)


@pytest.mark.search
@pytest.mark.parametrize("size, n, batch", [(16, 4, 5), *slow((256, 16, 64))])
def test_outputs_are_stored_as_they_stand(rng, tmp_path, size, n, batch):
    """Three layers whose results are all outputs take the stages, the multiplications and nearly the cycles of three layers with
    one output."""
    b, outputs = Builder(["n", size]), []
    for _ in range(3):
        b("MatMul", weights(rng, size, size))
        outputs.append(b("Relu"))
    networks = [tpu.load(b.save(tmp_path, outputs=some)).network for some in (outputs[2:], outputs)]
    one, several = (compile_network(network, tpu.Config(n=n), batch) for network in networks)
    assert len(several.memory.network.stages) == 3
    assert one.useful_macs == several.useful_macs == batch * 3 * size**2
    assert several.predicted_cycles <= 1.05 * one.predicted_cycles + 20 * n


def test_outputs_keep_infinities(rng, tmp_path):
    """Infinite values of an output leave the values beside them as they are."""
    b = Builder(["n", 3])
    factors = np.array([4, -1, -4], np.float32)
    one = b("Mul", factors)
    two = b.node("MatMul", [one, np.eye(3, dtype=np.float32)])
    model = tpu.load(b.save(tmp_path, outputs=[one, two]))
    x = np.array([[2.0**127, 0, 1], [1, 2, -(2.0**127)]], np.float32)
    for place in ("golden", "model"):
        found = model.predict(x, place, core=SMALL, check=False)[one]
        with np.errstate(over="ignore"):
            assert np.array_equal(found, x * factors) and np.isinf(found).sum() == 2


@pytest.mark.parametrize("n", [4, *slow(2, 8, 16)])
def test_outputs_of_all_kinds_from_c(rng, tmp_path, n):
    """Outputs of several sizes, an input, a result that is read again, and a result in pieces of another order have the golden
    model's bits in a program, at the places that a C host reads."""
    b = Builder(["n", 3, 4, 5])
    first = b("Conv", weights(rng, 6, 3, 2, 2), weights(rng, 6))
    second = b("Conv", weights(rng, 4, 6, 2, 2), strides=[1, 2])
    b("Flatten")
    third = b("Gemm", weights(rng, 16, 7), weights(rng, 7))
    moved = b.node("Transpose", [first], perm=[0, 2, 3, 1])
    pieces = b.node("Concat", [b.node("Flatten", [second]), b.node("Flatten", [first])], axis=1)
    same = b.node("Transpose", ["x"], perm=[0, 1, 3, 2])
    outputs = rng.permutation([first, second, third, moved, pieces, same]).tolist()
    path, x = b.save(tmp_path, outputs=outputs), rng.normal(size=(3, 3, 4, 5)).astype(np.float32)
    model = check(path, {"x": x}, ("golden", "model"), tolerance=0.05, core=tpu.Config(n=n), batch=2)
    bundle = make_bundle(model.network, compile_network(model.network, tpu.Config(n=n), 2), x[:2].reshape(2, -1))
    assert wrong_bytes(bundle, tpu.Config(n=n)) == 0
    host = host_of(model.network, tpu.Config(n=n), x[:2].reshape(2, -1), tmp_path / "c")
    host.memory[host.places["output"] : host.places["output"] + len(bundle.files["output.bin"])] = bundle.files["output.bin"]
    np.testing.assert_array_equal(host.unpack().view(np.uint32), bundle.results.view(np.uint32))


def test_boxes_of_several_sizes_are_one_output_without_a_copy(rng, tmp_path):
    """The heads of a detector, images of three sizes whose boxes are joined to one output, are stored as they stand."""
    b, heads = Builder(["n", 4, 12, 12]), []
    for inputs in (4, 8, 8):
        last = b.node("Relu", [b.node("Conv", [b.last, weights(rng, 8, inputs, 3, 3)], strides=[2, 2], pads=[1, 1, 1, 1])])
        b.node("Transpose", [b.node("Conv", [last, weights(rng, 12, 8, 1, 1)])], perm=[0, 2, 3, 1])
        heads.append(b("Reshape", np.array([0, -1, 6])))
        b.last = last
    path = b.save(tmp_path, outputs=[b.node("Concat", heads, axis=1)])
    x = rng.normal(size=(3, 4, 12, 12)).astype(np.float32)
    model = check(path, {"x": x}, ("golden", "model"), tolerance=0.1, core=tpu.Config(n=4), batch=2)
    assert len(model.network.outputs) == 3 and len(model.network.stages) == 6
    with pytest.raises(ModelError, match="results in several tensors, which can't be trained; put a dense"):
        with_parameters(model.network)


def test_training_refuses_several_outputs(rng, tmp_path):
    network = tpu.load(step(rng, tmp_path)).network
    with pytest.raises(ModelError, match="results in several tensors"):
        with_parameters(network)
