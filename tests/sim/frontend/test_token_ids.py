"""Token ids: rows of constant tables, and inputs of several types, against onnxruntime."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.bundle.bundle import make_bundle
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.data.digits import DataError
from amaranth_tpu.sim.data.samples import random_samples
from bundles import wrong_bytes
from onnx_models import Builder, close, integers, reference, refused, weights

CORE = Config(n=4, training=True)
ROWS, POSITIONS, DEPTH = 300, 5, 6  # more rows than the integers that bfloat16 represents


def inputs(b, **types):
    """Gives a graph these inputs: {name: (type, shape)}."""
    b.inputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in types.items()]
    return b


def embedded(rng, shape=("n", POSITIONS), kind=TensorProto.INT64):
    b = inputs(Builder([]), ids=(kind, shape))
    b.node("Gather", [weights(rng, ROWS, DEPTH), "ids"])
    b("Add", weights(rng, POSITIONS, DEPTH))
    return b


def ids(rng, count=3):
    return rng.integers(0, ROWS, (count, POSITIONS))


def wanted(path, feeds):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize("kind, type_", [(TensorProto.INT64, np.int64), (TensorProto.INT32, np.int32)])
def test_rows(rng, tmp_path, kind, type_):
    """Golden model and instruction-level model; negative ids count from the end of the table, as in ONNX."""
    b = embedded(rng, kind=kind)
    b("MatMul", weights(rng, DEPTH, 4))
    model, x = tpu.load(b.save(tmp_path)), ids(rng)
    x[0, 0], x[1, 1], x[2, 2] = 0, ROWS - 1, -ROWS
    right = wanted(tmp_path / "model.onnx", {"ids": x.astype(type_)})[0]
    close(model.predict(x), right)
    close(model.predict({"ids": x.astype(type_)}, on="model", core=CORE), right)
    assert model.inputs[0].dtype == type_
    assert (model.predict(x[:1]) == model.predict(x)[:1]).all()


def _reversed(b):
    b("Slice", *(np.array([number]) for number in (POSITIONS - 1, -POSITIONS - 1, 1, -1)))


def _rotated(b):
    b("Split", np.array([2, POSITIONS - 2]), axis=1)
    b.nodes[-1].output.append("rest")
    b.node("Concat", ["rest", b.last], axis=1)


MOVED = {
    "shuffled": lambda b: b("Gather", np.array([2, 0, 4, 1, 3]), axis=1),
    "reversed": _reversed,
    "rotated": _rotated,
    "transposed": lambda b: b.node("Transpose", [MOVED["shuffled"](b)], perm=[0, 2, 1]),
}
READ = {
    "mean": lambda b, rng, last: b("ReduceMean", axes=[-1]),
    "maximum": lambda b, rng, last: b("ReduceMax", axes=[-1], keepdims=0),
    "MatMul": lambda b, rng, last: b("MatMul", weights(rng, last, 3)),
    "Add": lambda b, rng, last: b("Add", weights(rng, POSITIONS * DEPTH // last, last)),
    "Softmax": lambda b, rng, last: b.node("Softmax", [b("Tanh")], axis=-1),
    "Gemm": lambda b, rng, last: b.node("Gemm", [b("Flatten"), weights(rng, POSITIONS * DEPTH, 3)]),
    "MaxPool": lambda b, rng, last: b("MaxPool", kernel_shape=[2]),
}


@pytest.mark.parametrize("source", ["table", "dense"])
def test_positions_in_another_order(rng, tmp_path, source):
    """Rows of a table, and of a dense layer, whose positions are permuted before an operator works on each position."""
    for moved, read in itertools.product(MOVED, READ):
        if source == "table":
            b, x = inputs(Builder([]), ids=(TensorProto.INT64, ["n", POSITIONS])), ids(rng)
            b.node("Gather", [weights(rng, ROWS, DEPTH), "ids"])
        else:
            b, x = Builder(["n", POSITIONS, DEPTH]), weights(rng, 3, POSITIONS, DEPTH)
            b("MatMul", weights(rng, DEPTH, DEPTH))
        MOVED[moved](b)
        READ[read](b, rng, POSITIONS if moved == "transposed" else DEPTH)
        path = b.save(tmp_path)
        close(tpu.load(path, probabilities=True).predict(x, check=False), reference(path, x))


def distances_to_bias(rng, after=("Softmax",)):
    """Returns the scores of 2 heads with a bias that a table gives for the distance of two positions: id 0 masks a position."""
    b = inputs(Builder([], opset=17), x=(1, ["n", 2, POSITIONS, POSITIONS]), ids=(TensorProto.INT64, ["n", POSITIONS, POSITIONS]))
    table = weights(rng, 9, 2)
    table[0] = -np.inf
    b.node("Gather", [table, "ids"])
    b("Transpose", perm=[0, 3, 1, 2])
    b.node("Add", ["x", b.last])
    for operator in after:
        b(operator, **({"axis": -1} if operator == "Softmax" else {}))
    return b


def wrapping(rng, rows, above=0):
    b = inputs(Builder([]), ids=(TensorProto.INT64, ("n", POSITIONS)))
    below = b.node("Less", ["ids", np.array(above)])
    b.node("Where", [below, b.node("Add", ["ids", np.array(rows)]), "ids"])
    b.node("Gather", [weights(rng, ROWS, DEPTH), b.last], name="odd")
    return b


def test_wrapped_ids(rng, tmp_path):
    """A model may add the number of rows to negative ids, as models of Keras do, because Gather counts them from the end too."""
    b = wrapping(rng, ROWS)
    b("MatMul", weights(rng, DEPTH, 4))
    model, x = tpu.load(b.save(tmp_path)), ids(rng)
    x[0, 0], x[1, 1] = -1, -ROWS
    close(model.predict(x), wanted(tmp_path / "model.onnx", {"ids": x})[0])
    for rows, above in ((ROWS - 1, 0), (ROWS, 1)):
        b = wrapping(rng, rows, above)
        b("MatMul", weights(rng, DEPTH, 4))
        refused(b.save(tmp_path), "operator Add", "works on integers")


def test_minus_infinity_of_a_table_masks_positions(rng, tmp_path):
    b = distances_to_bias(rng)
    b.node("MatMul", [b.last, weights(rng, POSITIONS, 4)])
    model = tpu.load(b.save(tmp_path))
    x, near = weights(rng, 3, 2, POSITIONS, POSITIONS), rng.integers(0, 9, (3, POSITIONS, POSITIONS))
    near[:, range(POSITIONS), range(POSITIONS)] = 1
    near[0, 0, 1:] = 0
    right = wanted(tmp_path / "model.onnx", {"x": x, "ids": near})[0]
    close(model.predict({"x": x, "ids": near}), right)
    close(model.predict({"x": x, "ids": near}, on="model", core=CORE), right)


def test_minus_infinity_of_a_table_is_only_for_softmax(rng, tmp_path):
    for after in ((), ("Relu",), ("Exp",), ("Neg", "Softmax")):
        refused(distances_to_bias(rng, after).save(tmp_path), "mask")
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", POSITIONS]))
    b.node("Gather", [np.array([[1, 2], [np.inf, 0]], np.float32), "ids"])
    refused(b.save(tmp_path), "is infinite in 1 of 4 values")


def test_exact(tmp_path):
    """Every row arrives unchanged where bfloat16 represents it."""
    table = (np.arange(ROWS) % 256 - 128.0).astype(np.float32)[:, None] * np.array([1, -2, 0.5, 0], np.float32)
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", 4]))
    b.node("Gather", [table, "ids"])
    b("Add", np.ones((1, 4), np.float32))
    x = np.arange(ROWS).reshape(-1, 4)
    np.testing.assert_array_equal(tpu.load(b.save(tmp_path)).predict(x), table[x] + 1)


@pytest.mark.parametrize("wrong", [ROWS, -ROWS - 1, 1 << 40])
def test_id_out_of_range(rng, tmp_path, wrong):
    b = embedded(rng)
    b("MatMul", weights(rng, DEPTH, 4))
    model, x = tpu.load(b.save(tmp_path)), ids(rng)
    x[1, 3] = wrong
    with pytest.raises(DataError, match=rf"input 'ids': value 3 of sample 1, {wrong}, is not a row of its table of {ROWS} rows"):
        model.predict(x)


def test_fractions_are_refused(rng, tmp_path):
    b = embedded(rng)
    b("MatMul", weights(rng, DEPTH, 4))
    with pytest.raises(DataError, match="is not of type int64"):
        tpu.load(b.save(tmp_path)).predict(ids(rng) + 0.5)


def test_random_samples_are_rows(rng, tmp_path):
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", 50]), x=(TensorProto.FLOAT, ["n", 7]))
    b.node("Gather", [weights(rng, 3, 2), "ids"])
    b("Reshape", np.array([0, 100]))
    b.node("Concat", [b.last, "x"], axis=1)
    b("MatMul", weights(rng, 107, 4))
    rows = random_samples(tpu.load(b.save(tmp_path)).network, 4, 1).rows
    assert set(rows[:, :50].flat) == {0, 1, 2} and (rows[:, 50:] % 1 != 0).all()


def several(rng):
    """A network with token ids, their types and a float32 mask; some inputs are used twice."""
    b = inputs(
        Builder([]),
        ids=(TensorProto.INT64, ["n", POSITIONS]),
        types=(TensorProto.INT32, ["n", POSITIONS]),
        mask=(TensorProto.FLOAT, ["n", POSITIONS, 1]),
    )
    words = b.node("Gather", [weights(rng, ROWS, DEPTH), "ids"])
    kinds = b.node("Gather", [weights(rng, 2, DEPTH), "types"])
    again = b.node("Gather", [weights(rng, ROWS, DEPTH), b.node("Slice", ["ids", np.array([1]), np.array([3]), np.array([1])])])
    b.node("Mul", [b.node("Add", [words, kinds]), "mask"])
    b("MatMul", weights(rng, DEPTH, 4))
    first = b("Reshape", np.array([0, POSITIONS * 4]))
    b.node("Reshape", [again, np.array([0, 2 * DEPTH])])
    b.node("Concat", [first, b.last], axis=1)
    b("MatMul", weights(rng, POSITIONS * 4 + 2 * DEPTH, 3))
    return b


def feeds_of(rng, count=4):
    return {
        "ids": ids(rng, count),
        "types": rng.integers(0, 2, (count, POSITIONS), np.int32),
        "mask": rng.integers(0, 2, (count, POSITIONS, 1)).astype(np.float32),
    }


def test_inputs_of_several_types(rng, tmp_path):
    path, feeds = several(rng).save(tmp_path), feeds_of(rng)
    model = tpu.load(path)
    assert [str(one.dtype) for one in model.inputs] == ["int64", "int32", "float32"]
    (right,) = wanted(path, feeds)
    close(model.predict(feeds), right)
    close(model.predict(feeds, on="onnx"), right, 1e-4)
    run = model.run(feeds, on="model", core=CORE, batch=3)
    assert run.result.mismatched_bits == 0 and run.compare().error is None
    for name, wrong in (("types", 2), ("ids", ROWS)):
        with pytest.raises(DataError, match=rf"input '{name}': value \d of sample 0"):
            model.predict(feeds | {name: np.full_like(feeds[name], wrong)})


def test_bundles_without_tables_only(rng, tmp_path):
    """The C driver converts numbers, but does not look up rows."""
    model = tpu.load(several(rng).save(tmp_path))
    with pytest.raises(CompileError, match="input 'ids': selects rows of a table.*the C driver does not"):
        make_bundle(model.network, model.compile(CORE, 2), np.zeros((1, model.network.sample_size)))
    b = inputs(Builder([]), x=(TensorProto.FLOAT, ["n", 3, 4]), y=(TensorProto.INT32, ["n", 4, 2]))
    b.node("Cast", ["y"], to=TensorProto.FLOAT)
    b.node("MatMul", ["x", b.last])
    model = tpu.load(b.save(tmp_path))
    bundle = make_bundle(model.network, model.compile(CORE, 2), integers(rng, 2, 20))
    assert wrong_bytes(bundle, CORE) == 0
    assert [part.name for part in bundle.model.input_parts] == ["x", "y"]


def test_refusals(rng, tmp_path):
    b = embedded(rng)
    b.node("Gather", [weights(rng, ROWS, DEPTH), b.node("Add", ["ids", np.array(1)])])
    refused(b.save(tmp_path), "works on integers")
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", POSITIONS]))
    b.node("Gather", [weights(rng, 4, ROWS), "ids"], axis=1)
    refused(b.save(tmp_path), "Gather", "rows, along axis 0")
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", POSITIONS]), x=(TensorProto.FLOAT, ["n", 4]))
    b.node("Gather", ["x", "ids"])
    refused(b.save(tmp_path), "Gather", "of a constant")
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", POSITIONS]))
    b.node("Gather", [np.full((ROWS, 2), np.inf, np.float32), "ids"])
    b("MatMul", weights(rng, 2, 2))
    refused(b.save(tmp_path), "Gather", "infinite")


def test_ids_are_numbers_too(rng, tmp_path):
    """The same integers select rows, and after a Cast are numbers."""
    b = inputs(Builder([]), ids=(TensorProto.INT64, ["n", POSITIONS]))
    rows = b.node("Gather", [weights(rng, ROWS, 1), "ids"])
    b.node("Reshape", [rows, np.array([0, POSITIONS])])
    b.node("Add", [b.last, b.node("Mul", [b.node("Cast", ["ids"], to=TensorProto.FLOAT), np.array(2.0**-8, np.float32)])])
    b("MatMul", weights(rng, POSITIONS, 3))
    path, x = b.save(tmp_path), ids(rng)
    close(tpu.load(path).predict(x), wanted(path, {"ids": x})[0])
