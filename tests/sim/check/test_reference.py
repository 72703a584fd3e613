"""Tests that the comparison with ONNX interpreters accepts correct results, even of deep and large models, and finds one wrong
operator."""

import json
import resource
import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

from amaranth_tpu.sim.check import interpreters
from amaranth_tpu.sim.check.against_model import against_model, chosen
from amaranth_tpu.sim.check.reference import BINARY32, check_stages, run_exact
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import NONE, Function
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.network import run_network
from onnx_models import Builder, weights
from seeds import seed


def compared(path, x, network=None):
    network = network or load_network(path)
    samples = x.astype(np.float32).reshape(len(x), -1)
    found = against_model(network, samples, run_network(network, samples))
    json.loads(json.dumps(asdict(found), allow_nan=False))
    return found


def convolutional(rng, transposed=False, bound=6.0, activation="Relu", weight=None):
    build = Builder(["batch", 2, 6, 6])
    first = rng.normal(0, 0.5, (4, 2, 3, 3)).astype(np.float32)
    build("Conv", first, pads=[1, 1, 1, 1], name="first")
    build(activation, name="bend")
    branch = build.last
    second = rng.normal(0, 0.3, (4, 4, 3, 3)).astype(np.float32)
    build("Conv", second.transpose(1, 0, 2, 3).copy() if transposed else second, pads=[1, 1, 1, 1], name="second")
    build("Add", branch, name="sum")
    build("Clip", np.array(0, np.float32), np.array(bound, np.float32), name="bounds")
    build("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    build("Flatten")
    build("Gemm", weights(rng, 36, 5) if weight is None else weight, name="dense")
    return build


def images(rng):
    return rng.normal(0, 3, (12, 2, 6, 6)).astype(np.float32)


def test_agreement(tmp_path):
    path = convolutional(np.random.default_rng(seed())).save(tmp_path)
    found = compared(path, images(np.random.default_rng(seed())))
    assert found.error is found.reason is None and found.samples == 8 and found.not_finite == 0
    assert 0 < found.largest < 0.1 * found.scale and 0 < found.rms < found.largest
    assert found.reading < 0.5 and 0 < found.rounding < 1 and found.top_agreement > 0
    assert list(chosen(3)) == [0, 1, 2] and list(chosen(100))[::7] == [0, 99]


@pytest.mark.parametrize("change", [{"transposed": True}, {"bound": 6.1}, {"activation": "Identity"}, {"activation": "Elu"}])
def test_one_wrong_operator(tmp_path, change):
    """If the file differs from the network by one operator, weight or bound, the comparison reports a reading error. A bound that
    is off by 2 % is found, too."""
    path = convolutional(np.random.default_rng(seed())).save(tmp_path)
    network = load_network(path)
    convolutional(np.random.default_rng(seed()), **change).save(tmp_path)
    found = compared(path, images(np.random.default_rng(seed())), network)
    assert "read wrongly" in found.error and found.reading > 1 and "\n" not in found.error


def test_one_wrong_stage(tmp_path):
    """If one stage has a wrong weight, function, pool or bias, `check_stages` and the comparison with ONNX fail, although the
    exact network is right."""
    rng = np.random.default_rng(seed())
    network = load_network(convolutional(rng).save(tmp_path))
    samples = images(rng).reshape(12, -1)
    assert check_stages(network, samples[:3]).share < 1

    def broken(number, **changes):
        stages = list(network.stages)
        stages[number] = replace(stages[number], **changes)
        return replace(network, stages=tuple(stages))

    term = network.stages[0].terms[0]
    off = network.constant("off", round_bfloat16(network.constants[term.weights].astype(np.float32) * 1.02))
    function = network.stages[1].function
    for wrong in (
        broken(0, terms=(replace(term, weights=off),)),
        broken(0, function=NONE),
        broken(1, function=Function("clip", (0.0, function.parameters[1] + 0.3))),
        broken(1, pool=replace(network.stages[1].pool, dilation=(0, 0))),
        broken(2, start=network.constant("half", np.full((1, 1, 5), 0.5, np.float32))),
    ):
        assert check_stages(wrong, samples[:3]).share > 1
        assert against_model(wrong, samples, run_network(wrong, samples)).error


def test_deep_network_with_one_wrong_sign(tmp_path):
    """In a network of 30 layers, bfloat16 rounding errors are accepted, but one wrong sign of a weight is found."""

    def model(sign):
        rng, build = np.random.default_rng(seed()), Builder(["batch", 16])
        for layer in range(30):
            weight = rng.normal(0, 0.5, (16, 16)).astype(np.float32)
            build("MatMul", weight * (sign if layer == 7 else 1))
            build("Tanh")
        return build.save(tmp_path)

    x = np.random.default_rng(seed()).normal(0, 1, (8, 16)).astype(np.float32)
    path = model(np.ones((16, 16), np.float32))
    network = load_network(path)
    found = compared(path, x, network)
    assert found.error is None and found.rms > 0.02 * found.scale
    flipped = np.ones((16, 16), np.float32)
    flipped[3, 5] = -1
    assert "read wrongly" in compared(model(flipped), x, network).error


def test_softmax_and_labels_of_the_host(tmp_path):
    """Logits are compared with ONNX's probabilities through the omitted Softmax, and ArgMax labels with the values that they are
    chosen from."""
    rng = np.random.default_rng(seed())
    x = rng.normal(0, 1, (9, 12)).astype(np.float32)
    for last, kinds in (("Softmax", ("softmax",)), ("LogSoftmax", ("log",)), (None, ("",)), ("ArgMax", ("",))):
        build = Builder(["batch", 12])
        build("Gemm", weights(rng, 12, 4), name="dense")
        if last:
            build(last, axis=1)
        model = build.model()
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64 if last == "ArgMax" else TensorProto.FLOAT
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        network = load_network(path)
        origin = network.origin
        assert tuple(output.last for output in origin.outputs) == kinds and origin.output.label == (last == "ArgMax")
        found = compared(path, x, network)
        assert found.error is None and found.samples == 8 and found.top_agreement > 0, last
        theirs = interpreters.onnxruntime_of(path, [build.last])({"x": x})[0]
        ours = origin.output.of(run_network(network, x))
        if last == "ArgMax":
            assert ours.dtype == np.int64 and (ours == theirs.reshape(ours.shape)).mean() > 0.5
        else:
            assert ours.dtype == np.float32 and ours.shape == theirs.shape and np.abs(ours - theirs).max() < 0.1


@pytest.mark.parametrize("shape", [["batch", 3, 4], [1, 3, 4], [5, 3, 4]])
def test_batch_axes(tmp_path, shape):
    """The comparison with ONNX accepts models with an open batch, a batch of 1, and a batch of 5 that must be padded."""
    rng, build = np.random.default_rng(seed()), Builder(shape)
    build("Flatten")
    build("Gemm", weights(rng, 12, 3), name="dense")
    network = load_network(path := build.save(tmp_path))
    assert network.origin.batch == (None if shape[0] == "batch" else shape[0]) and network.origin.output.shape == (3,)
    found = compared(path, rng.normal(0, 1, (7, 3, 4)), network)
    assert found.samples == 7 and found.error is None and found.interpreter.startswith("onnxruntime")


def test_without_onnxruntime(tmp_path, monkeypatch):
    """Without onnxruntime the comparison uses the interpreter of the package onnx. If no interpreter supports the model, nothing
    is compared, and no error is raised."""
    rng = np.random.default_rng(seed())
    path = convolutional(rng).save(tmp_path)
    network = load_network(path)
    monkeypatch.setattr(interpreters, "available", lambda: [interpreters.onnx_reference])
    found = compared(path, images(rng), network)
    assert found.interpreter == f"onnx {onnx.__version__}" and found.error is None and found.samples > 0
    model = onnx.load(path)
    model.graph.node[0].op_type = "NoSuchOperator"
    path.write_bytes(model.SerializeToString())
    found = compared(path, images(rng), network)
    assert found.samples == 0 and found.interpreter is found.largest is None
    assert "NoSuchOperator" in found.reason and "\n" not in found.reason and found.rounding < 1


def test_no_false_alarm_where_an_interpreter_overflows(tmp_path):
    """log(1 + exp(x)) overflows in a binary32 interpreter at x = 100, but not in binary64 or on the core. This is not reported as
    an error."""
    build = Builder(["batch", 4])
    build("MatMul", np.eye(4, dtype=np.float32))
    build("Exp")
    build("Add", np.array(1, np.float32))
    build("Log")
    path = build.save(tmp_path)
    found = compared(path, np.array([[100.0, -3, 2, 0.5], [1, 2, 3, 4]]))
    assert found.error is None and found.not_finite == 1 and found.reading < 1 and found.largest < 0.1
    found = compared(path, np.array([[800.0, -3, 2, 0.5], [1, 2, 3, 4]]))  # infinite in binary64, too
    assert found.error is None and found.not_finite == 1 and found.reading < 1
    assert "overflows in 1 of these samples" in found.note and "'Exp_1'" in found.note and "exact value is 800" in found.note
    found = compared(path, np.array([[800.0, -3, 2, 0.5]]))
    assert found.error is found.reading is None and "overflows in 1 of these samples" in found.note


def test_overflow_excuses_nothing_else(tmp_path):
    """An overflow in the interpreter excuses neither an infinity without overflow nor a wrong value in another sample."""

    def save(weight, operators, one):
        build = Builder(["batch", 2])
        for operator in operators:
            build(operator, *{"MatMul": [weight], "Add": [np.array(one, np.float32)]}.get(operator, []))
        return build.save(tmp_path)

    eye, x = np.eye(2, dtype=np.float32), np.array([[800.0, 1], [2, 3]])
    path = save(eye, ("MatMul", "Exp", "Add", "Log"), 1)
    network = load_network(path)
    for model in ((eye, ("MatMul", "Exp", "Add", "Log"), 2), (0 * eye, ("MatMul", "Add", "Abs", "Log"), 0)):
        save(*model)
        found = compared(path, x, network)
        assert "read wrongly" in found.error and found.note is None and found.samples == 2


@pytest.mark.parametrize("opset", [8, 9, 13, 14])
def test_normalization_without_onnxruntime(opset, rng, tmp_path, monkeypatch):
    """onnx's own interpreter normalises as in training before opset 14. The comparison avoids this, and skips models before opset
    9."""
    monkeypatch.setattr(interpreters, "available", lambda: [interpreters.onnx_reference])
    build = Builder(["batch", 2, 3, 3], opset=opset)
    build("Conv", weights(rng, 3, 2, 2, 2))
    build("BatchNormalization", *(rng.uniform(0.5, 1.5, 3).astype(np.float32) for _ in range(4)), momentum=0.7, name="norm")
    network, samples = load_network(build.save(tmp_path)), rng.normal(size=(3, 18)).astype(np.float32)
    found = against_model(network, samples, run_network(network, samples))
    assert found.error is None
    assert found.samples == (0 if opset < 9 else 3)
    assert opset >= 9 or "'norm' before opset 9" in found.reason


def test_ceil_mode_without_onnxruntime(tmp_path, monkeypatch):
    """onnx's own interpreter computes `ceil_mode` wrongly for this model. The comparison skips it with a reason instead of
    reporting an error."""
    build = Builder(["batch", 1, 8])
    build("MaxPool", kernel_shape=[3], strides=[2], pads=[0, 1], ceil_mode=1, name="ceil")
    build("ReduceMax", axes=[2])
    path = build.save(tmp_path)
    x = -1 - np.arange(16.0).reshape(2, 1, 8)
    assert compared(path, x).samples == 2
    monkeypatch.setattr(interpreters, "available", lambda: [interpreters.onnx_reference])
    found = compared(path, x)
    assert found.samples == 0 and found.error is None and "ceil_mode" in found.reason and "'ceil'" in found.reason


def _doubled(count):
    """Returns a model with a Loop without condition that doubles a tensor `count` times."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 4] x) => (float y) <int64 count = {{{count}}}> {{
        grown = Loop <body = body (int64 number, bool on, float[n, 4] part) => (bool go, float[m, 4] whole) {{
            go = Identity (on)
            whole = Concat <axis = 0> (part, part)
        }}> (count, , x)
        y = ReduceSum <keepdims = 0> (grown)
    }}""")


def test_a_loop_cannot_take_all_memory():
    """The limit holds while an interpreter runs. onnx's own interpreter omits a Loop without condition, so it refuses it."""
    limits, x = resource.getrlimit(resource.RLIMIT_DATA), {"x": np.ones((1, 4), np.float32)}
    assert interpreters.onnxruntime_of(_doubled(3), ["y"])(x) == [32]
    with pytest.raises(interpreters.InterpreterError, match="takes more memory"):
        interpreters.onnxruntime_of(_doubled(26), ["y"])(x)
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits
    with_condition = _doubled(3)
    with_condition.graph.node[0].input[1] = "on"
    with_condition.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "on"))
    assert interpreters.onnx_reference(with_condition, ["y"])(x) == [32]
    with_condition.graph.node[0].output.append("each")
    for model in (_doubled(3), with_condition):
        with pytest.raises(interpreters.InterpreterError, match="Loop.* without condition or with a list of results"):
            interpreters.onnx_reference(model, ["y"])


def test_binary16_models(tmp_path):
    """A model in binary16 is compared with ONNX with the tolerance of binary16's rounding errors."""
    rng, build = np.random.default_rng(seed()), Builder(["batch", 16], kind=TensorProto.FLOAT16)
    for _ in range(2):
        build("MatMul", weights(rng, 16, 16).astype(np.float16))
        build("Relu")
    model = build.model()
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    path = tmp_path / "half.onnx"
    path.write_bytes(model.SerializeToString())
    found = compared(path, rng.normal(0, 1, (4, 16)).astype(np.float16))
    assert found.samples == 4 and found.error is None


def test_exact_values_are_kept_while_they_are_read(rng, tmp_path):
    """Thirty layers of 20,000 values take less memory than ten."""
    build = Builder(["batch", 20000])
    for _ in range(30):
        build("Tanh")
    network = load_network(build.save(tmp_path))
    tracemalloc.start()
    run_exact(network.origin, rng.normal(size=(1, 20000)), BINARY32(2.0**-24))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2 * 8 * 20000
