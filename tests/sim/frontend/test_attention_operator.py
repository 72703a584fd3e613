"""Attention, RotaryEmbedding and Swish of opsets 23 and 24, against the interpreter of the package onnx."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from onnx_models import Builder, close, refused, weights

CORE = Config(n=4, training=True)
COUNT, KEYS, HEADS, SIZE = 3, 4, 2, 4  # queries, keys, heads, values of a head


def graph(opset=24, **shapes):
    b = Builder([], opset=opset)
    b.inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape]) for name, shape in shapes.items()]
    return b


def compared(b, feeds, outputs=None, on=("golden",), tolerance=0.02):
    """Compares all outputs, and the bits of the core's model where it is among the backends."""
    path = b.folder / "model.onnx"
    path.write_bytes(b.model(outputs=outputs, ir_version=10).SerializeToString())
    right = ReferenceEvaluator(str(path)).run(None, feeds)
    model = tpu.load(path)
    for place in on:
        run = model.run(feeds, on=place, **({} if place == "golden" else {"core": CORE}))
        assert not run.result.mismatched_bits
        for name, values in zip(outputs or [b.last], right):
            close(run.outputs[name], values, tolerance)
    return model


def feeds_of(rng, b):
    shapes = {one.name: [dim.dim_value for dim in one.type.tensor_type.shape.dim[1:]] for one in b.inputs}
    return {name: rng.normal(size=(2, *shape)).astype(np.float32) for name, shape in shapes.items()}


ROWS = {"q": (COUNT, HEADS * SIZE), "k": (KEYS, HEADS * SIZE), "v": (KEYS, HEADS * SIZE)}
IN_HEADS = {"q": (HEADS, COUNT, SIZE), "k": (HEADS, KEYS, SIZE), "v": (HEADS, KEYS, SIZE)}
GROUPED = {"q": (HEADS, COUNT, SIZE), "k": (1, KEYS, SIZE), "v": (1, KEYS, SIZE)}
NUMBERS = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
ALL_BUT_LAST = np.tri(COUNT, KEYS, KEYS - COUNT - 1, dtype=bool)  # the first query attends to nothing


@pytest.mark.parametrize(
    "shapes, attributes, mask",
    [
        (ROWS, NUMBERS, None),
        (IN_HEADS, {"is_causal": 1, "scale": 0.3}, None),
        (GROUPED, {"softcap": 2.0}, np.array([[True, True, False, True]])),
        (ROWS, NUMBERS, "floats"),
        (IN_HEADS, {"is_causal": 1}, ALL_BUT_LAST),
        (IN_HEADS, {}, np.array([[0.5, -1, -np.inf]], np.float32)),  # shorter than the keys: the rest is masked
    ],
    ids=["rows", "causal", "grouped", "float mask", "empty row", "short mask"],
)
def test_attention(rng, tmp_path, shapes, attributes, mask):
    b = graph(**shapes)
    b.folder = tmp_path
    mask = weights(rng, COUNT, KEYS) if isinstance(mask, str) else mask
    b.node("Attention", ["q", "k", "v", *([] if mask is None else [mask])], **attributes)
    compared(b, feeds_of(rng, b))


def test_mask_of_an_input(rng, tmp_path):
    b = graph(**IN_HEADS, mask=(1, COUNT, KEYS))
    b.folder = tmp_path
    b.node("Attention", ["q", "k", "v", "mask"])
    compared(b, feeds_of(rng, b), on=("golden", "model"))


@pytest.mark.parametrize("mode", [0, 3])
def test_cache(rng, tmp_path, mode):
    b = graph(**IN_HEADS, pk=(HEADS, 2, SIZE), pv=(HEADS, 2, SIZE))
    b.folder = tmp_path
    outputs = ["y", "key", "value", "scores"]
    b.nodes.append(
        helper.make_node(
            "Attention", ["q", "k", "v", "", "pk", "pv"], outputs, "attention", is_causal=1, qk_matmul_output_mode=mode
        )
    )
    b.last = "y"
    compared(b, feeds_of(rng, b), outputs)


@pytest.mark.parametrize("positions", [None, "constant", "input"])
@pytest.mark.parametrize("attributes", [{}, {"interleaved": 1}, {"rotary_embedding_dim": 2}])
def test_rotary_embedding(rng, tmp_path, positions, attributes):
    size = attributes.get("rotary_embedding_dim", SIZE) // 2
    b = graph(23, x=(COUNT, HEADS * SIZE))
    b.folder = tmp_path
    angles = rng.uniform(0, 6, (1, COUNT, size) if positions is None else (7, size)).astype(np.float32)
    feeds = feeds_of(rng, b)
    caches = [np.cos(angles), np.sin(angles)]
    if positions is None:  # the caches have a row for each sample
        caches, feeds = caches, {"x": feeds["x"][:1]}
    inputs = ["x", *caches]
    if positions == "input":
        b.inputs.append(helper.make_tensor_value_info("p", TensorProto.INT64, ["n", COUNT]))
        feeds["p"] = rng.integers(0, 7, (2, COUNT))
        inputs.append("p")
    elif positions:
        feeds, inputs = {"x": feeds["x"][:1]}, [*inputs, np.array([[4, 0, 6]])]
    b.node("RotaryEmbedding", inputs, num_heads=HEADS, **attributes)
    compared(b, feeds)


@pytest.mark.parametrize("alpha", [1.0, -1.7, 0.0])
def test_swish(rng, tmp_path, alpha):
    b = graph(x=(50,))
    b.folder = tmp_path
    b.node("Swish", ["x"], alpha=alpha)
    compared(b, {"x": rng.normal(0, 4, (2, 50)).astype(np.float32)})


def test_refusals(rng, tmp_path):
    def case(inputs, words, attributes=None, operator="Attention", opset=24, **shapes):
        b = graph(opset, **{**IN_HEADS, **shapes})
        b.inputs.append(helper.make_tensor_value_info("bool", TensorProto.BOOL, ["n", 1, COUNT, KEYS]))
        b.node(operator, inputs, **(attributes or {}))
        refused(b.save(tmp_path, ir_version=10), operator, *words)

    case(["q", weights(rng, 1, HEADS, KEYS, SIZE), "v"], ["keys must be computed"])
    case(["q", "k", "v", "bool"], ["attn_mask must be constant"])
    case(["q", "k", "v"], ["do not divide into 3 heads"], {"q_num_heads": 3, "kv_num_heads": HEADS}, **ROWS)
    case(["q", "k", "v"], ["heads of queries do not fit"], q=(3, COUNT, SIZE))
    case(["q", "q", "q"], ["must be constant"], operator="RotaryEmbedding", opset=23)
