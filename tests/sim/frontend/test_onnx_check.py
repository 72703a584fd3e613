"""Tests that the reader refuses every model that ONNX refuses, with node and reason."""

from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import run_graph
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, close, integers, reference, refused
from onnx_mutations import bases, mutate
from seeds import seed


def ones(*shape):
    return np.ones(shape, np.float32)


def vector(*arguments, opset=13, shape=(12,), **attributes):
    def build():
        b = Builder(["n", *shape], opset)
        b("MatMul", ones(shape[-1], shape[-1]))
        b(*arguments, name="odd", **attributes)
        return b.model()

    return build


def image(*arguments, opset=13, **attributes):
    return vector(*arguments, opset=opset, shape=(2, 6, 6), **attributes)


def change(edit, *arguments, **options):
    def build():
        model = vector(*(arguments or ("Relu",)), **options)()
        edit(model)
        return model

    return build


def _named(model):
    model.graph.node[1].output[0] = model.graph.output[0].name = "c0"


def _again(model):
    model.graph.initializer.add().CopyFrom(model.graph.initializer[0])


def _with_mask(model):
    model.graph.node[1].output.append("mask")
    model.graph.output.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, None))


def _tensor(**fields):
    def edit(model):
        for name, value in fields.items():
            if name == "dims":
                model.graph.initializer[0].dims[:] = value
            else:
                setattr(model.graph.initializer[0], name, value)

    return edit


def _typed(**changes):
    def edit(model):
        (attribute,) = model.graph.node[1].attribute
        for name, value in changes.items():
            setattr(attribute, name, value)

    return edit


def _parameters(*shape):
    return [ones(*shape)] * 4


#: name -> (model, words of the error)
CASES = {
    # ---- attributes
    "transb": (vector("Gemm", ones(12, 12), transb=1), "no attribute 'transb' in opset 13", "transA, transB"),
    "negative_slope": (vector("LeakyRelu", negative_slope=0.2), "no attribute 'negative_slope'", "there are: alpha"),
    "stride": (image("Conv", ones(2, 2, 3, 3), stride=[2, 2]), "no attribute 'stride'", "strides"),
    "attribute of another opset": (vector("Clip", min=0.0, opset=11), "no attribute 'min' in opset 11"),
    "attribute twice": (
        change(lambda m: m.graph.node[1].attribute.append(m.graph.node[1].attribute[0]), "Elu", alpha=1.0),
        "attribute alpha twice",
    ),
    "type of an attribute": (vector("LeakyRelu", alpha=1), "attribute alpha is of the type INT, not FLOAT"),
    "two values of an attribute": (change(_typed(f=1.0), "Flatten", axis=1), "attribute axis has no value, or one that is not"),
    "missing attribute": (vector("Concat"), "attribute axis is missing"),
    "auto_pad": (image("Conv", ones(2, 2, 3, 3), auto_pad="SAME"), "auto_pad is 'SAME'", "SAME_UPPER, SAME_LOWER, VALID"),
    "auto_pad and pads": (image("Conv", ones(2, 2, 3, 3), auto_pad="VALID", pads=[1] * 4), "auto_pad and pads"),
    "mode of Pad": (
        image("Pad", np.array([0] * 8), mode="wrap", opset=18),
        "mode is 'wrap'; it can be one of: constant, reflect",
    ),
    "approximate": (vector("Gelu", approximate="fast", opset=20), "approximate is 'fast'"),
    "no groups": (image("Conv", ones(2, 2, 3, 3), group=0), "group is 0"),
    "storage_order": (image("MaxPool", kernel_shape=[2, 2], storage_order=2), "storage_order is 2"),
    "transB": (vector("Gemm", ones(12, 12), transB=2), "transB is 2"),
    # ---- inputs and outputs
    "third input": (vector("MatMul", ones(12, 12), ones(12)), "has 3 inputs, 2 are needed"),
    "input left out": (vector("MatMul", ""), "input 2, B, is left out"),
    "second output": (change(lambda m: m.graph.node[1].output.append("more")), "has 2 outputs, 1 are needed"),
    "output named like an initialiser": (change(_named), "makes 'c0', which is an initialiser"),
    "initialiser twice": (change(_again), "2 initialisers with the name 'c0'"),
    "output twice": (change(lambda m: m.graph.output.append(m.graph.output[0])), "'t1' is named twice"),
    "cycle": (
        change(lambda m: m.graph.node[0].input.__setitem__(0, "t1")),
        "operator MatMul, node 'MatMul_0': the graph is cyclic: 't0' depends on itself",
    ),
    "mask of Dropout": (change(_with_mask, "Dropout"), "operator Dropout, node 'odd': its output 'mask' is not supported"),
    # ---- versions
    **{
        f"{name} {opset}": (vector(name, opset=opset), f"is only in ONNX from opset {first} on; the model uses {opset}")
        for name, opset, first in (("Gelu", 13, 20), ("HardSwish", 9, 14), ("Mish", 13, 18))
    },
    "gone": (image("Upsample", np.ones(4, np.float32), opset=10), "not in opset 10 any more"),
    "no such operator": (vector("NoSuchThing"), "is not an operator of ONNX"),
    "opset 99": (vector("Relu", opset=99), "opset 99 of the domain 'ai.onnx' is not one of 1 to"),
    "opset of another domain": (
        change(lambda m: setattr(m.opset_import[1], "version", 99)),
        "opset 99 of the domain 'ai.onnx.ml'",
    ),
    "two opsets": (change(lambda m: m.opset_import.add(domain="ai.onnx", version=12)), "two operator sets, 13 and 12"),
    "no opset": (change(lambda m: m.ClearField("opset_import")), "does not say which operator set"),
    "IR 99": (change(lambda m: setattr(m, "ir_version", 99)), "IR version 99"),
    "IR 2": (change(lambda m: setattr(m, "ir_version", 2)), "IR version 2 is not one of 3 to"),
    "IR 0": (change(lambda m: m.ClearField("ir_version")), "IR version 0"),
    # ---- types
    "bias of integers": (
        vector("Gemm", ones(12, 12), np.ones(12, np.int32)),
        "are of two types, tensor(float) and tensor(int32)",
    ),
    "weights in float64": (vector("MatMul", np.ones((12, 12))), "are of two types, tensor(float) and tensor(double)"),
    "shape in int32": (vector("Reshape", np.array([0, 12], np.int32)), "is a tensor(int32); allowed are tensor(int64)"),
    "output of another type": (
        change(lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 7)),
        "makes a tensor(float), though the file says that 't1' is a tensor(int64)",
    ),
    "type of a Cast": (vector("Cast", to=99), "to is 99"),
    # ---- tensors
    "negative size": (change(_tensor(dims=[-1, 12])), "initialiser 'c0' has a negative size"),
    "too few bytes": (change(_tensor(raw_data=bytes(12))), "initialiser 'c0'", "(12, 12) has 12 bytes, 576 are needed"),
    "no bytes": (change(lambda m: m.graph.initializer[0].ClearField("raw_data")), "has its values in 0 fields"),
    "other field": (
        change(lambda m: (m.graph.initializer[0].ClearField("raw_data"), m.graph.initializer[0].int64_data.append(1))),
        "cannot be in int64_data",
    ),
    "type 77": (change(_tensor(data_type=77)), "has the type 77"),
    # ---- axes and sizes
    "axis twice": (image("Slice", np.array([0, 1]), np.array([4, 4]), np.array([2, -2])), "name one axis", "twice"),
    "starts and ends": (image("Slice", np.array([0, 1]), np.array([4]), np.array([2, 3])), "have different lengths"),
    "step": (image("Slice", np.array([0]), np.array([4]), np.array([2]), np.array([0])), "steps [0] is 0"),
    "reflection": (
        image("Pad", np.array([0, 0, 6, 0, 0, 0, 0, 0]), mode="reflect"),
        "by 6 and 0, which is too much for mode reflect",
    ),
    "axis of Softmax": (vector("Softmax", axis=2), "axis 2 is out of range for the shape (batch, 12)"),
    "axis of Flatten": (image("Flatten", axis=5), "axis 5 is out of range"),
    "axis of ReduceMean": (image("ReduceMean", axes=[6]), "axis 6 is out of range"),
    "axis of Unsqueeze": (vector("Unsqueeze", np.array([7])), "axes [7]"),
    "axis of ArgMax": (
        change(lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 7), "ArgMax", axis=-3),
        "axis -3 is out of range",
    ),
    "axis of Concat": (vector("Concat", "t0", axis=2), "axis 2 is out of range"),
    "indices": (vector("Gather", np.array([12]), axis=1), "picks 12 to 12 along axis 1"),
    "parts": (change(lambda m: m.graph.node[1].output.extend(["a", "b", "c", "d"]), "Split", axis=1), "into 5 equal parts"),
    "list of lists": (vector("Reshape", np.array([[0, -1]])), "one of its lists has the shape (1, 2)"),
    "channels": (
        image("BatchNormalization", *_parameters(1)),
        "input scale of the shape (1)",
        "each channel of (batch, 2, 6, 6)",
    ),
    "spatial": (image("BatchNormalization", *_parameters(2), spatial=0, opset=8), "spatial = 0 is not supported"),
    "rank of a bias": (vector("Gemm", ones(12, 12), ones(1, 1, 12)), "bias of the shape (1, 1, 12) does not fit 12 outputs"),
    "bound": (vector("Clip", ones(2)), "bound min has the shape (2)"),
    "equation": (vector("Einsum", ones(1, 12, 12), equation="bk,kn->bn"), "equation has kn for an input of (1, 12, 12)"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(tmp_path, case):
    build, *words = CASES[case]
    path = tmp_path / "model.onnx"
    path.write_bytes(build().SerializeToString())
    refused(path, *words)


@pytest.mark.parametrize("attribute, why", [({"activation_alpha": 0.25}, None), ({"slope": 0.25}, "no attribute 'slope'")])
def test_fused_operator_of_onnxruntime(tmp_path, attribute, why):
    """onnxruntime's FusedGemm is read with the activation's own alpha, which differs from the product's. An unknown attribute is
    refused."""
    b = Builder(["n", 12])
    b("FusedGemm", ones(12, 3), name="odd", activation="LeakyRelu", alpha=0.5, **attribute)
    b.nodes[-1].domain = "com.microsoft"
    model = b.model()
    model.opset_import.add(domain="com.microsoft", version=1)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if why:
        return refused(path, "operator com.microsoft.FusedGemm, node 'odd'", why)
    x = np.full((1, 12), -8, np.float32)
    close(run_graph(load_network(path), x), reference(path, x))


def test_unusual_valid_models(tmp_path):
    """Unusual models that ONNX accepts give the same results as onnxruntime: bounds of shape (1,), a Max of one tensor, sums of
    several, a repeated operand."""
    b = Builder(["n", 4])
    first = b("Gemm", integers(np.random.default_rng(seed()), 4, 4))
    second = b("Clip", np.array([-3], np.float32), np.array([3], np.float32))
    b("Max")
    b.node("Sum", [first, second, b.last, second])
    b.node("Sum", [b.last, b.last, ones(4)])
    path, x = b.save(tmp_path), np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    close(run_graph(load_network(path), x), reference(path, x))


class _Checker:
    """ONNX's checker in a separate process, because an assertion in its code ends the process for some models."""

    def __init__(self):
        self._pool = None

    def __call__(self, model):
        self._pool = self._pool or ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        try:
            self._pool.submit(onnx.checker.check_model, model.SerializeToString(), full_check=True).result(60)
        except BrokenProcessPool:
            self._pool = None  # without an answer, only onnxruntime's result counts

    def close(self):
        if self._pool is not None:
            self._pool.shutdown()


@pytest.fixture(scope="module")
def checker():
    made = _Checker()
    yield made
    made.close()


def _refusals(model, path, checker):
    """Returns the errors of the reader, the ONNX checker and onnxruntime for a model, with None for no error."""
    onnxruntime = pytest.importorskip("onnxruntime")
    path.write_bytes(model.SerializeToString())
    answers = []
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for accept in (
        lambda: load_network(path),
        lambda: checker(model),
        lambda: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]),
    ):
        try:
            accept()
            answers.append(None)
        except Exception as error:
            assert answers or isinstance(error, ModelError)
            answers.append(" ".join(str(error).split()))
    return answers


#: Errors of the onnx package's checker for files that onnxruntime may accept.
_DECIDED_BY_RUNTIME = ("Inferred shape and existing shape differ", "topologically sorted", "but not in graph input")


@pytest.mark.parametrize("trials", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_reader_refuses_what_onnx_refuses(tmp_path, trials, checker):
    """If ONNX or onnxruntime refuses a randomly changed model, the ONNX reader refuses it too. Exceptions: declared sizes of
    results are not compared with the actual ones. onnxruntime alone decides about the order of nodes, and about initialisers that
    are not inputs before IR version 4."""
    rng = np.random.default_rng(seed())
    path, models = tmp_path / "model.onnx", bases(rng)
    for model in models:
        assert _refusals(model, path, checker) == [None] * 3
    both = 0
    for _ in range(trials):
        model, what = mutate(models[rng.integers(len(models))], rng)
        ours, theirs, runtime = _refusals(model, path, checker)
        if theirs and any(
            text in theirs
            for text in ("Inferred shape and existing shape differ", "topologically sorted", "but not in graph input")
        ):
            theirs = None
        assert ours or not (theirs or runtime), (what, theirs, runtime)
        both += bool(ours and (theirs or runtime))
    assert both > trials // 10
