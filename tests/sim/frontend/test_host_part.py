"""Tests of models whose end is left to the host: the outputs, their values against onnxruntime, and the message."""

import logging
import re

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from command import tpu as tpu_command
from json_output import printed
from onnx_models import Builder, close, integers, refused, values_of, weights

pytest.importorskip("onnxruntime")
INT64 = TensorProto.INT64


def two(b, operator, *inputs, **attributes):
    b(operator, *inputs, **attributes)
    b.nodes[-1].output.append(f"{b.last}_second")
    b.last = f"{b.last}_second"


def _top(b):
    two(b, "TopK", np.array([2]), name="end", axis=1)


def _argmax(b):
    b("ArgMax", name="end", axis=1, keepdims=0)


ENDS = {
    "TopK": (_top, INT64, 1),
    "TopK and more": (lambda b: [_top(b), b("Cast", to=INT64), b("Mul", np.array(2)), b("NonZero")], INT64, 4),
    "ArgMax of an axis": (_argmax, INT64, 1),
    "ArgMin": (lambda b: b("ArgMin", name="end", axis=2), INT64, 1),
    "last ArgMax": (lambda b: [b("Flatten"), b("ArgMax", name="end", axis=1, select_last_index=1)], INT64, 1),
    "LogSoftmax": (lambda b: b("LogSoftmax", name="end", axis=1), TensorProto.FLOAT, 1),
    "functions of LogSoftmax": (lambda b: [b("LogSoftmax", name="end", axis=1), b("Exp"), b("Log")], TensorProto.FLOAT, 3),
}


@pytest.mark.parametrize("case", ENDS)
def test_model_ends_before_the_operator(rng, tmp_path, caplog, case):
    end, kind, count = ENDS[case]
    b = Builder(["n", 3, 4, 4], opset=13)
    b("Conv", weights(rng, 5, 3, 2, 2))
    scores = b("Sigmoid")
    end(b)
    path, x = b.save(tmp_path, kinds=[kind]), rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    with caplog.at_level(logging.WARNING):
        model = tpu.load(path)
    scores = b.nodes[2].output[0] if case == "last ArgMax" else scores
    assert [one.name for one in model.outputs] == [scores]
    assert model.not_computed == (b.last,) and f"without {b.last}" in repr(model)
    found = model.predict(x)  # a dict, because the array is not the file's output
    assert [*found] == [scores]
    close(found[scores], values_of(path, x, [scores])[scores])
    (line,) = caplog.messages
    after = f" and {count - 1} node{'s' * (count > 2)} after it" if count > 1 else ""
    assert f"node 'end': left to the host, which computes it{after} from '{scores}'" in line and str(path) in line
    assert model.network.origin.host_part in line and f"not computed: '{b.last}'" in line


def test_run_says_which_outputs_are_left_out(rng, tmp_path):
    """The text and the JSON of `tpu run` name the tensor that is the result, and the file's output that is not."""
    b = Builder(["n", 3, 4, 4], opset=13)
    scores = b("Conv", weights(rng, 5, 3, 2, 2))
    _top(b)
    path, x = b.save(tmp_path, kinds=[INT64]), rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    options = "run", "--model", path, "--input", tmp_path / "x.npy", "--simulator", "golden"
    text = tpu_command(*options).stdout
    assert re.search(rf"outputs\W+{scores}\W", text) and re.search(rf"left to the host\W+{b.last}\W", text)
    figures = printed("run", tpu_command(*options, "--json").stdout)
    assert (figures["outputs"], figures["not_computed"]) == ([scores], [b.last])


def test_results_beside_the_host_part_stay_outputs(rng, tmp_path):
    """Boxes and scores of a detector, a constant operand, and an output before the host's part. The suppression comes from an
    `If` with a constant condition."""
    b = Builder([1, 6, 4])
    boxes = b("MatMul", weights(rng, 4, 4))
    features = b.node("Relu", ["x"])
    b.node("MatMul", [features, weights(rng, 4, 3)])
    scores = b("Transpose", perm=[0, 2, 1])
    limits = b.constant(np.array([3])), b.constant(np.array([0.5], np.float32))
    inner = [helper.make_node("NonMaxSuppression", [boxes, scores, *limits], ["kept"], "nms")]
    branch = helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info("kept", INT64, None)])
    chosen = b.node("If", [b.constant(np.array(True))], then_branch=branch, else_branch=branch)
    path, x = b.save(tmp_path, outputs=[chosen, features], kinds=[INT64]), rng.normal(size=(1, 6, 4)).astype(np.float32)
    model = tpu.load(path)
    assert [one.name for one in model.outputs] == [features, boxes, scores]
    assert f"node 'nms': left to the host, which computes it and 1 node after it from '{boxes}', '{scores}'" in (
        model.network.origin.host_part
    )
    found, wanted = model.predict(x), values_of(path, x, [features, boxes, scores])
    for name in found:
        close(found[name], wanted[name])


def test_layers_of_the_host_are_counted(rng, tmp_path):
    b = Builder(["n", 4, 4])
    b("MatMul", weights(rng, 4, 4))
    b("LogSoftmax", axis=1)
    b("MatMul", weights(rng, 4, 4))
    model = tpu.load(b.save(tmp_path))
    assert "and 1 node after it (1 of them Conv, MatMul and the like)" in model.network.origin.host_part


def test_label_before_other_operators_stays_an_output(rng, tmp_path):
    """The host computes the label, and everything after it."""
    b = Builder(["n", 4])
    b("MatMul", integers(rng, 4, 5))
    label = b("ArgMax", axis=1)
    b("Mul", np.array(2), name="end")
    path, x = b.save(tmp_path, kinds=[INT64]), integers(rng, 6, 4)
    model = tpu.load(path)
    assert "node 'end'" in model.network.origin.host_part
    np.testing.assert_array_equal(model.predict(x)[label], values_of(path, x, [label])[label])


def test_labels_of_values_that_are_copied(rng, tmp_path):
    """The values of the label occur several times in their node, are padded, or come from several nodes."""
    b = Builder([1, 6])
    layer, places = b("MatMul", integers(rng, 6, 5)), b.constant
    for operator, *inputs in (
        ("Gather", layer, places(np.array([1, 1, 4]))),
        ("Pad", layer, places(np.array([0, 1, 0, 2]))),
        ("Concat", layer, b.node("Reshape", [b.node("MatMul", ["x", integers(rng, 6, 4)]), np.array([1, 4])])),
    ):
        count = len(b.nodes)
        b.node(operator, inputs, **({"axis": 1} if operator != "Pad" else {}))
        b("ArgMax", axis=1)
        path, x = b.save(tmp_path, kinds=[INT64]), integers(rng, 1, 6)
        np.testing.assert_array_equal(tpu.load(path).predict(x), values_of(path, x, [b.last])[b.last])
        del b.nodes[count:]


def test_model_without_layers_before_the_host_part_is_refused(rng, tmp_path):
    b = Builder(["n", 4])
    two(b, "TopK", np.array([2]), name="best")
    refused(b.save(tmp_path, kinds=[INT64]), "operator TopK, node 'best': belongs to the host", "nothing to compute before it")
