"""ONNX model of a transformer encoder block with random weights."""

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

__all__ = ["encoder_block"]


def encoder_block(tokens, width, heads, hidden) -> ModelProto:
    """Returns an encoder block with normalisation before attention and before the feed-forward network.

    The input is (batch, tokens, width). Weights are float32, normally distributed with a variance of 1 / inputs.

    Parameters
    ----------
    tokens, width : int
        Length of the sequence, and channels of a token.
    heads : int
        Heads of the attention; a divisor of `width`.
    hidden : int
        Width of the feed-forward network, which has GELU.
    """
    rng = np.random.default_rng(0)
    each = width // heads
    constants = {
        "one": np.ones(width, np.float32),
        "zero": np.zeros(width, np.float32),
        "scale": np.float32(each**-0.5),
        "by_head": np.array([0, tokens, heads, each]),
        "joined": np.array([0, tokens, width]),
    }
    for name, rows, columns in (
        *((f"w_{part}", width, width) for part in ("q", "k", "v", "o")),
        ("w_1", width, hidden),
        ("w_2", hidden, width),
    ):
        constants[name] = (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype(np.float32)
    nodes = [helper.make_node("LayerNormalization", ["x", "one", "zero"], ["normal_1"])]
    for part, order in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        nodes += [
            helper.make_node("MatMul", ["normal_1", f"w_{part}"], [f"{part}_rows"]),
            helper.make_node("Reshape", [f"{part}_rows", "by_head"], [f"{part}_heads"]),
            helper.make_node("Transpose", [f"{part}_heads"], [part], perm=order),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["heads_last"], perm=(0, 2, 1, 3)),
        helper.make_node("Reshape", ["heads_last", "joined"], ["attended"]),
        helper.make_node("MatMul", ["attended", "w_o"], ["projected"]),
        helper.make_node("Add", ["x", "projected"], ["residual"]),
        helper.make_node("LayerNormalization", ["residual", "one", "zero"], ["normal_2"]),
        helper.make_node("MatMul", ["normal_2", "w_1"], ["hidden"]),
        helper.make_node("Gelu", ["hidden"], ["activated"]),
        helper.make_node("MatMul", ["activated", "w_2"], ["fed"]),
        helper.make_node("Add", ["residual", "fed"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ("batch", tokens, width if name == "x" else None)) for name in "xy"
    ]
    graph = helper.make_graph(
        nodes, "encoder", ends[:1], ends[1:], [numpy_helper.from_array(value, name) for name, value in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
