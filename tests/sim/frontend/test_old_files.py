"""Tests of files of old operator sets, which onnx.version_converter converts."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

from amaranth_tpu.sim import tpu
from onnx_models import close, integers, reference, refused
from suites import slow

PADS = {"pads": [0, 0, 1, 2, 0, 0, 0, 1]}
#: Operators whose attributes became inputs, or whose meaning changed.
NODES = {
    "Pad": ("Pad", PADS),
    "Pad with a number": ("Pad", {**PADS, "value": 0.0}),
    "Pad by reflection": ("Pad", {**PADS, "mode": "reflect"}),
    "Slice": ("Slice", {"starts": [1, 0], "ends": [5, 6], "axes": [2, 3]}),
    "Clip": ("Clip", {"min": -1.0, "max": 2.0}),
    "Dropout": ("Dropout", {"ratio": 0.3}),
    "ReduceMean": ("ReduceMean", {"axes": [3], "keepdims": 1}),
    "Upsample": ("Upsample", {"scales": [1.0, 1.0, 2.0, 2.0]}),
    "BatchNormalization": ("BatchNormalization", {"epsilon": 1e-3}),
    "Hardmax": ("Hardmax", {"axis": 1}),  # onnx.version_converter does not adapt it to opset 13; the host computes it
}


def old(rng, operator, attributes):
    """Returns a model of opset 7 and IR version 3 with `operator` and a Conv. Its initialisers are also graph inputs."""
    constants = {"w": integers(rng, 3, 2, 3, 1)}
    inputs = ["x"]
    if operator == "BatchNormalization":
        constants |= {name: rng.uniform(0.5, 1.5, 2).astype(np.float32) for name in ("scale", "B", "mean", "var")}
        inputs += ["scale", "B", "mean", "var"]
    nodes = [helper.make_node(operator, inputs, ["t"], "old", **attributes), helper.make_node("Conv", ["t", "w"], ["y"])]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, 6, 6])]
    ends += [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in constants.items()]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, "h", "w"])
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ends, [result], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)


@pytest.mark.parametrize("case", NODES)
def test_old_file_is_converted_when_it_is_read(rng, tmp_path, caplog, case):
    path, x = tmp_path / "model.onnx", integers(rng, 3, 2, 6, 6)
    onnx.save(old(rng, *NODES[case]), path)
    with caplog.at_level(logging.WARNING):
        model = tpu.load(path, strict=case != "Hardmax")
    assert "converted from opset 7 to 8" in caplog.messages[0]
    close(model.predict(x), reference(path, x))


def test_file_that_cannot_be_converted_is_refused(rng, tmp_path, monkeypatch):
    def fails(model, opset):
        raise RuntimeError("no adapter")

    monkeypatch.setattr(version_converter, "convert_version", fails)
    onnx.save(old(rng, *NODES["Clip"]), tmp_path / "model.onnx")
    refused(tmp_path / "model.onnx", "opset 7 is too old, and onnx.version_converter cannot convert the model: no adapter")


@pytest.mark.parametrize("opset", [11, *slow(8, 9, 10, 13, 18)])
@pytest.mark.parametrize("case", NODES)
def test_converted(rng, tmp_path, case, opset):
    model, path = old(rng, *NODES[case]), tmp_path / "model.onnx"
    onnx.save(version_converter.convert_version(model, opset), path)
    x = integers(rng, 3, 2, 6, 6)
    close(tpu.load(path).predict(x), reference(path, x))
