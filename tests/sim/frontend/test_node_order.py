"""Tests that the order and the names of nodes in a file do not affect the network."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.order import in_order
from amaranth_tpu.sim.ir.stage import Tensor
from onnx_models import Builder, close, reference, weights


def shuffled(model, order):
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.graph.node[:]
    copy.graph.node.extend(model.graph.node[place] for place in order)
    return copy


def branches(rng):
    b = Builder(["n", 6])
    first = b("MatMul", weights(rng, 6, 6))
    b("Relu")
    b("MatMul", weights(rng, 6, 6))
    b("Add", first)
    b("MatMul", weights(rng, 6, 3))
    b("Softmax", axis=1)
    return b.model()


def test_node_order_does_not_matter(rng, tmp_path):
    """A model with reordered nodes gives the same bits, and both ONNX interpreters can run it for comparison."""
    model, x = branches(rng), rng.normal(size=(4, 6)).astype(np.float32)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    right = tpu.load(tmp_path / "model.onnx").predict(x)
    for order in [range(len(model.graph.node))[::-1], rng.permutation(len(model.graph.node))]:
        path = tmp_path / "shuffled.onnx"
        path.write_bytes(shuffled(model, order).SerializeToString())
        found = tpu.load(path)
        np.testing.assert_array_equal(found.predict(x), right)
        assert found.compare(x, against="onnx").error is None and found.compare(x, against="onnxruntime").error is None


def test_ordered_nodes_stay_in_place(rng):
    graph = branches(rng).graph
    assert in_order(graph) == list(range(len(graph.node)))


@pytest.mark.parametrize("operator, gates", [("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("outputs", [["", "Y_h"], ["Y", ""], ["", "", "Y_c"]])
def test_first_output_left_out(rng, tmp_path, operator, gates, outputs):
    """An unnamed GRU or LSTM without a name for its first output gives the same results as onnxruntime."""
    if operator == "GRU" and len(outputs) > 2:
        outputs = ["", "Y_h"]
    hidden = 5
    b = Builder([3, 2, 4], opset=14)
    given = [weights(rng, 1, gates * hidden, 4), weights(rng, 1, gates * hidden, hidden)]
    inputs = ["x", *(b.constant(one) for one in given)]
    b.nodes.append(helper.make_node(operator, inputs, outputs, hidden_size=hidden))
    path = b.save(tmp_path, outputs=list(filter(None, outputs)))
    model, x = tpu.load(path), rng.normal(size=(3, 2, 4)).astype(np.float32)
    run = model.run(x[None] if model.inputs[0].shape[0] is None else x)
    assert run.compare().error is None
    close(np.reshape(run.output, -1), reference(path, x).reshape(-1))
    assert all(model.network.tensors) and all(stage.name for stage in model.network.stages)


def test_tensor_without_name():
    with pytest.raises(ValueError, match="must have a name"):
        Tensor("", 4)


def test_unsupported_second_output_is_refused(rng, tmp_path):
    """A model whose output is an unsupported second output of a node (Dropout's mask) is refused with that output's name."""
    b = Builder(["n", 4])
    b("MatMul", weights(rng, 4, 4))
    b.nodes.append(helper.make_node("Dropout", ["t0"], ["kept", "mask"], "drop"))
    b.nodes.append(helper.make_node("Relu", ["kept"], ["t9"], "relu"))
    path = b.save(tmp_path, outputs=["t9", "mask"], kinds=[TensorProto.FLOAT, TensorProto.BOOL])
    with pytest.raises(tpu.ModelError, match="node 'drop': its output 'mask' is not supported"):
        tpu.load(path, strict=True)
