"""Small transformers as exporters write them: a vision transformer, a decoder with past keys and values, a guarded encoder."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from onnx_models import Builder, close, refused, weights
from suites import slow

CORE = Config(n=4, training=True)
PLACES = ["model", *slow("verilator")]
DEPTH, HEADS = 8, 2
SIZE = DEPTH // HEADS


def number(value):
    return np.array(value, np.float32)


def inputs(b, **types):
    b.inputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in types.items()]
    return b


def compared(b, folder, feeds, place, outputs=None):
    """Compares all outputs with onnxruntime, and the bits of a backend with the golden model."""
    model = tpu.load(b.save(folder, outputs=outputs), strict=True)
    right = model.run(feeds, on="onnxruntime").outputs
    run = model.run(feeds, on=place, core=CORE, batch=2)
    assert run.result.mismatched_bits == 0 and run.compare().error is None
    for name, values in right.items():
        close(run.outputs[name], values)
    return model


def heads_of(b, rng, tensor, perm=(0, 2, 1, 3)):
    b.node("MatMul", [tensor, weights(rng, DEPTH, DEPTH)])
    b("Add", weights(rng, DEPTH))
    b("Reshape", np.array([0, -1, HEADS, SIZE]))
    return b("Transpose", perm=perm)


def attended(b, rng, tensor, shares, values):
    b.node("MatMul", [shares, values])
    b("Transpose", perm=[0, 2, 1, 3])
    b("Reshape", np.array([0, -1, DEPTH]))
    b("MatMul", weights(rng, DEPTH, DEPTH))
    return b.node("Add", [b.last, tensor])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("batch", ["n", *slow(2)])
def test_vision_transformer(rng, tmp_path, place, batch):
    """Patches by a convolution, in one sequence with a class token, and positions; the result is the token's."""
    b = Builder([batch, 3, 6, 6], opset=17)
    b("Conv", weights(rng, DEPTH, 3, 2, 2), weights(rng, DEPTH), kernel_shape=[2, 2], strides=[2, 2])
    b("Reshape", np.array([0, DEPTH, 9]))
    patches = b("Transpose", perm=[0, 2, 1])
    if batch == "n":
        b.node("Shape", ["x"])
        b("Gather", np.array([0]), axis=0)
        sizes = b.node("Concat", [b.last, np.array([1, DEPTH])], axis=0)
        token = b.node("Expand", [weights(rng, 1, 1, DEPTH), sizes])
    else:
        token = np.repeat(weights(rng, 1, 1, DEPTH), 2, axis=0)
    b.node("Concat", [token, patches], axis=1)
    tokens = b("Add", weights(rng, 10, DEPTH))
    queries, keys, values = heads_of(b, rng, tokens), heads_of(b, rng, tokens, (0, 2, 3, 1)), heads_of(b, rng, tokens)
    b.node("Mul", [b.node("MatMul", [queries, keys]), number(SIZE**-0.5)])
    attended(b, rng, tokens, b("Softmax", axis=-1), values)
    b("Gather", np.array(0), axis=1)
    b("MatMul", weights(rng, DEPTH, 5))
    compared(b, tmp_path, {"x": rng.normal(size=(2, 3, 6, 6)).astype(np.float32)}, place)


@pytest.mark.parametrize("place", PLACES)
def test_decoder_with_a_cache(rng, tmp_path, place):
    """A step of one token: past keys and values are inputs, the next ones outputs. The last of four steps from an empty cache
    gives the same results as onnxruntime, and other results than without the past."""
    past, length = 4, 4
    b = inputs(
        Builder([], opset=17),
        id=(TensorProto.INT64, ["n", 1]),
        position=(TensorProto.INT64, ["n", 1]),
        pk=(TensorProto.FLOAT, ["n", HEADS, past, SIZE]),
        pv=(TensorProto.FLOAT, ["n", HEADS, past, SIZE]),
        mask=(TensorProto.FLOAT, ["n", 1, 1, past + 1]),
    )
    table, places = weights(rng, 20, DEPTH), weights(rng, length, DEPTH)
    token = b.node("Add", [b.node("Gather", [table, "id"]), b.node("Gather", [places, "position"])])
    queries = heads_of(b, rng, token)
    keys = b.node("Concat", ["pk", heads_of(b, rng, token)], axis=2)
    values = b.node("Concat", ["pv", heads_of(b, rng, token)], axis=2)
    b.node("MatMul", [queries, b.node("Transpose", [keys], perm=[0, 1, 3, 2])])
    b("Add", "mask")
    last = attended(b, rng, token, b("Softmax", axis=-1), values)
    ends = np.array([1]), np.array([past + 1]), np.array([2])
    outputs = [last, b.node("Slice", [keys, *ends]), b.node("Slice", [values, *ends])]
    model = tpu.load(b.save(tmp_path, outputs=outputs))
    ids = rng.integers(0, 20, (2, length))
    state = np.zeros((2, 2, HEADS, past, SIZE), np.float32)
    for step in range(length):
        feeds = {
            "id": ids[:, step : step + 1],
            "position": np.full((2, 1), step),
            "pk": state[0],
            "pv": state[1],
            "mask": np.broadcast_to(np.where(np.arange(past + 1) < past - step, number(-1e30), 0), (2, 1, 1, past + 1)),
        }
        if step == length - 1:
            compared(b, tmp_path, feeds, place, outputs)
        found = model.predict(feeds)
        state = np.stack([found[name] for name in outputs[1:]])
    feeds["pk"], feeds["pv"] = feeds["pk"] * 0, feeds["pv"] * 0  # without the past the result is another one
    assert np.abs(model.predict(feeds)[last] - found[last]).max() > 0.1


def guarded(rng, zero=0.0, other=False):
    """An encoder whose mask picks from an input by GatherND, and replaces NaN after the Softmax, as HuggingFace's do."""
    b = inputs(Builder([], opset=17), ids=(TensorProto.INT64, [1, 4]), mask=(TensorProto.INT64, [1, 4]))
    tokens = b.node("Gather", [weights(rng, 9, DEPTH), "ids"])
    b.node("Cast", ["mask"], to=TensorProto.BOOL)
    places = np.stack([np.zeros((1, 1, 4), int), np.arange(4)[None, None]], axis=-1)
    picked = b("GatherND", places.reshape(1, 1, 1, 4, 2))
    b.node("And", [np.tri(4, dtype=bool)[None, None], picked])
    mask = b("Where", ..., number(0), number(-np.inf))
    queries, keys, values = heads_of(b, rng, tokens), heads_of(b, rng, tokens, (0, 2, 3, 1)), heads_of(b, rng, tokens)
    b.node("Add", [b.node("MatMul", [queries, keys]), mask])
    shares = b("Softmax", axis=-1)
    undefined = b("IsNaN")
    kept = b.node("Transpose", [shares], perm=[0, 1, 3, 2]) if other else shares
    attended(b, rng, tokens, b.node("Where", [undefined, number(zero), kept]), values)
    return b


def test_rows_that_attend_to_nothing(rng, tmp_path):
    """Rows of which every value is masked get shares of 0 where the model says so."""
    feeds = {"ids": rng.integers(0, 9, (3, 4)), "mask": np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0]])}
    compared(guarded(rng), tmp_path, feeds, "model")


def test_guards_refused(rng, tmp_path):
    refused(guarded(rng, zero=1.0).save(tmp_path), "after IsNaN, only 0")
    refused(guarded(rng, other=True).save(tmp_path), "after IsNaN, only 0")
    b = Builder(["n", 4])
    b.node("Where", [b("IsNaN"), number(0), "x"])
    refused(b.save(tmp_path), "IsNaN", "the result of Softmax")


def test_attention_of_a_batch_in_the_middle(rng, tmp_path):
    """torch's MultiheadAttention joins positions and samples, positions first, around its last layer."""
    b = Builder(["n", 5, DEPTH], opset=17)
    tokens = b("Transpose", perm=[1, 0, 2])
    b("MatMul", weights(rng, DEPTH, DEPTH))
    b("Reshape", np.array([-1, DEPTH]))
    b("Gemm", weights(rng, DEPTH, DEPTH), weights(rng, DEPTH))
    b("Relu")
    b("Reshape", np.array([5, -1, DEPTH]))
    b.node("Add", [b.last, tokens])
    b("Transpose", perm=[1, 0, 2])
    compared(b, tmp_path, {"x": rng.normal(size=(3, 5, DEPTH)).astype(np.float32)}, "model")
    b.node("Reshape", [b.node("Transpose", [b.last], perm=[1, 0, 2]), np.array([-1, DEPTH])])
    refused(b.save(tmp_path), "moves the batch")


def test_attention_of_heads_after_samples_on_an_axis(rng, tmp_path):
    """Keras' attention, as tf2onnx exports it: heads join the batch's axis, the larger of two batch sizes restores them, and the
    causal mask has a row for each sample."""
    b, heads, count = Builder(["n", 5, DEPTH], opset=17), 4, 5
    inputs = [b.node("MatMul", ["x", weights(rng, DEPTH, DEPTH)]) for _ in range(3)]
    inputs = [b.node("Reshape", [one, np.array([-1, count, heads, DEPTH // heads])]) for one in inputs]
    orders = [0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]
    rows, columns, values = (b.node("Transpose", [one], perm=order) for one, order in zip(inputs, orders))

    def product(one, two):
        sizes = [b.node("Gather", [b.node("Shape", [each]), np.array([0, 1])]) for each in (one, two)]
        ends = [b.node("Gather", [b.node("Shape", [each]), np.array([axis])]) for each, axis in ((one, 2), (two, 3))]
        joined = []
        for each, size in zip((one, two), sizes):
            last = b.node("Slice", [b.node("Shape", [each]), np.array([2]), np.array([4])])
            joined.append(b.node("Reshape", [each, b.node("Concat", [b.node("ReduceProd", [size]), last], axis=0)]))
        shape = b.node("Concat", [b.node("Max", sizes), *ends], axis=0)
        return b.node("Reshape", [b.node("MatMul", joined), shape])

    scores = product(rows, columns)
    one = helper.make_tensor("one", TensorProto.BOOL, [1], [True])
    seen = b.node("And", [b.node("ConstantOfShape", [b.node("Shape", [scores])], value=one), np.tri(count, dtype=bool)])
    hidden = b.node("Mul", [b.node("Cast", [b.node("Not", [seen])], to=TensorProto.FLOAT), number(-3e38)])
    kept = b.node("Mul", [scores, b.node("Cast", [seen], to=TensorProto.FLOAT)])
    result = product(b.node("Softmax", [b.node("Add", [kept, hidden])]), values)
    b.node("Reshape", [b.node("Transpose", [result], perm=[0, 2, 1, 3]), np.array([-1, count, DEPTH])])
    b("MatMul", weights(rng, DEPTH, 3))
    compared(b, tmp_path, {"x": rng.normal(size=(3, count, DEPTH)).astype(np.float32)}, "model")
