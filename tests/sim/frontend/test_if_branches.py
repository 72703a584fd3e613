"""Tests of `If` with a constant condition, and of signals with mirrored ends, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, integers, reference, refused, weights


def branch(rng, names, depth):
    """Returns a branch that computes with values of the graphs around it, `names`, all (n, 4). It uses names that other branches
    use too, may have constants of its own, and may contain an `If`."""
    nodes, constants, seen = [], [], [*names]
    for number in range(rng.integers(1, 4)):
        one, two = (str(rng.choice(seen)) for _ in range(2))
        kind, out = rng.integers(3), f"v{depth}_{number}"
        if kind == 0:
            constants.append(numpy_helper.from_array(integers(rng, 4), f"c{depth}_{number}"))
            nodes.append(helper.make_node("Add", [one, constants[-1].name], [out]))
        elif kind == 1:
            nodes.append(helper.make_node("Add", [one, two], [out]))
        else:
            nodes.append(helper.make_node("Neg", [one], [out]))
        seen.append(out)
    if depth < 2 and rng.integers(2):
        constants.append(numpy_helper.from_array(np.array(bool(rng.integers(2))), f"cond{depth}"))
        ways = {name: branch(rng, seen, depth + 1) for name in ("then_branch", "else_branch")}
        nodes.append(helper.make_node("If", [constants[-1].name], [f"if{depth}"], **ways))
        seen.append(f"if{depth}")
    out = helper.make_tensor_value_info(seen[-1], TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [out], constants)


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_random_branches_give_the_values_of_onnx(rng, tmp_path, rounds):
    accepted = 0
    while accepted < rounds:
        b = Builder(["n", 4])
        first = b("MatMul", integers(rng, 4, 4, limit=1))
        second = b.node("Relu", [first])
        b.node("Shape", [first])  # the condition is computed from a size that is known
        size = b("Gather", np.array(1))
        condition = b.node("Equal", [size, np.array(int(rng.choice([4, 5])))])
        for _ in range(2):  # the names in the branches are the same
            values = [first, second] if b.last == condition else [first, second, b.last]
            ways = {name: branch(rng, values, 0) for name in ("then_branch", "else_branch")}
            b.node("If", [condition], **ways)
        b("MatMul", integers(rng, 4, 3, limit=1))
        path, x = b.save(tmp_path), integers(rng, 3, 4, limit=1)
        try:
            model = tpu.load(path)
        except ModelError as error:  # x - x, which ONNX does not compute exactly for all x
            assert "cancel" in str(error), error
            continue
        accepted += 1
        np.testing.assert_array_equal(model.predict(x, check=False), reference(path, x), err_msg=str(path))


def simple(rng, condition):
    b = Builder([1, 4])
    b("MatMul", integers(rng, 4, 4))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    way = helper.make_graph([helper.make_node("Neg", [b.last], ["y"], name="inside")], "branch", [], [out])
    b.node("If", [condition], name="choice", then_branch=way, else_branch=way)
    return b


def test_conditions_of_inputs_are_refused(rng, tmp_path):
    b = simple(rng, "flag")
    b.inputs.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    refused(b.save(tmp_path), "operator If, node 'choice': its condition is computed from an input; make the input constant")


def test_unknown_operators_in_a_branch_are_refused(rng, tmp_path):
    model = simple(rng, np.array(True)).model()
    attributes = next(node for node in model.graph.node if node.op_type == "If").attribute
    way = next(one.g for one in attributes if one.name == "then_branch")
    way.node[0].op_type = "Det"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    refused(path, "operator Det, node 'inside': is not supported")


def test_magnitude_of_a_signal_with_mirrored_ends(rng, tmp_path):
    """The square root of a sum of squares, as models of speech compute a spectrum."""
    b = Builder([1, 96])
    b.node("Pad", ["x", np.array([0, 16, 0, 16])], mode="reflect")
    b("Unsqueeze", np.array([1]))
    spectrum = b("Conv", weights(rng, 8, 1, 32), strides=[16])
    real = b.node("Slice", [spectrum, np.array([0]), np.array([4]), np.array([1])])
    squares = b("Pow", np.array(2.0, np.float32))
    b.node("Slice", [spectrum, np.array([4]), np.array([8]), np.array([1])])
    b("Pow", np.array(2.0, np.float32))
    b.node("Add", [squares, b.last])
    b("Sqrt")
    path, x = b.save(tmp_path), rng.normal(size=(1, 96)).astype(np.float32)
    model = tpu.load(path)
    assert model.compare(x).error is None and real != spectrum
    assert np.abs(model.predict(x) - reference(path, x)).max() < 0.02 * np.abs(reference(path, x)).max()


def test_mirrored_signal_beside_another_input(rng, tmp_path):
    """The inputs share a node until the signal needs a position for each value. Both ends are longer than 128 values."""
    b = Builder([1, 200])
    b.inputs.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, [1, 4]))
    b.node("Pad", ["x", np.array([0, 130, 0, 140])], mode="reflect")
    b("Unsqueeze", np.array([1]))
    b("Conv", integers(rng, 4, 1, 30, limit=1), strides=[40])
    b("ReduceMax", axes=[2], keepdims=0)
    b.node("Add", [b.last, "state"])
    model, x = tpu.load(b.save(tmp_path)), integers(rng, 1, 204, limit=3)
    ours, theirs = model.run(x), model.run(x, on="onnxruntime")
    np.testing.assert_array_equal(*(next(iter(run.outputs.values())) for run in (ours, theirs)))
