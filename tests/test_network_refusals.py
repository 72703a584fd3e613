"""What the reader of ONNX files refuses: one line, with the operator and the node where there is one."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_models import Builder, integers, refused
from seeds import seed

from sim.network import ModelError, load_network


@pytest.fixture
def rng():
    return np.random.default_rng(seed())


def mlp(rng, **options):
    b = Builder([None, 12], **options)
    b("Gemm", integers(rng, 12, 8), integers(rng, 8), name="first")
    b("Relu", name="cut")
    b("Gemm", integers(rng, 8, 3), integers(rng, 3), name="last")
    return b


@pytest.mark.parametrize("operator", ["InstanceNormalization", "LRN", "ConvTranspose", "LSTM", "NoSuchThing"])
def test_unsupported_operator(rng, tmp_path, operator):
    b = mlp(rng)
    b(operator, name="odd\none")
    refused(b.save(tmp_path), f"operator {operator}", "odd\\none", "supported are Gemm, MatMul, Einsum, Conv, ")


def test_unsupported_names_the_first(rng, tmp_path):
    b = Builder([None, 1, 12, 12])
    b("ConvTranspose", integers(rng, 1, 2, 3, 3), name="Convolution28")
    b("LRN", size=3)
    refused(b.save(tmp_path), "operator ConvTranspose, node 'Convolution28'")


def test_unnamed_node(rng, tmp_path):
    b = mlp(rng)
    b("Sin")
    b.nodes[-1].name = ""
    refused(b.save(tmp_path), "operator Sin, node (unnamed, makes 't3')")


def refusals():
    """name -> (what to do to an MLP, words of the message)"""
    def operator(*arguments, **attributes):
        return lambda b: b(*arguments, name="odd", **attributes)

    def several(*calls):
        return lambda b: [b(*call) for call in calls]

    def edit(index, **changes):
        def apply(b):
            for key, value in changes.items():
                position = int(key[1:])
                getattr(b.nodes[index], {"i": "input", "o": "output"}[key[0]])[position] = value
        return apply

    def other_domain(b):
        b("FusedGemm", name="odd")
        b.nodes[-1].domain = "com.microsoft"

    def branches(b):
        b.node("Gemm", ["t1", np.eye(8, dtype=np.float32)])
        b.node("Div", ["t1", b.last], name="odd")

    def second_input(b):
        b.inputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 12]))

    def shape(dims):
        def apply(b):
            b.inputs[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, dims))
        return apply

    ones = np.ones
    dequantize = ("DequantizeLinear", [ones((3, 3), np.int8), np.array(1, np.float32), np.array(0, np.int8)])
    return {
        "cyclic": (edit(0, i0="t2"), "cyclic", "Gemm"),
        "cycle of one": (edit(1, i0="t1"), "cyclic", "Relu", "'cut'"),
        "missing initialiser": (edit(2, i1="gone"), "'last'", "'gone' is missing"),
        "missing output": (edit(2, o0="other"), "'t2' is made by no node"),
        "two makers": (edit(2, o0="t1"), "two nodes make 't1'"),
        "inconsistent shapes": (edit(2, i1="c0"), "'last'", "(batch, 8)", "(12, 8)", "do not multiply"),
        "bias of wrong size": (edit(2, i2="c1"), "'last'", "do not fit"),
        "two inputs": (second_input, "one input, not 2"),
        "open size": (shape([None, "pixels"]), "(?, pixels)", "only the first size"),
        "no shape": (shape(None), "no shape"),
        "empty input": (shape([None, 0]), "empty"),
        "wrong input size": (shape([None, 13]), "'first'", "do not multiply"),
        "not flattened": (shape([2, 3, 12]), "'first'", "Gemm needs matrices"),
        "other domain": (other_domain, "com.microsoft.FusedGemm", "'odd'", "domain"),
        "two branches": (branches, "operator Div, node 'odd'", "not part of a function"),
        "after LogSoftmax": (several(("LogSoftmax",), ("Relu",)), "LogSoftmax", "nothing may come after"),
        "softmax over the batch": (operator("Softmax", axis=0), "'odd'", "must be over all 3 values"),
        "constant over values": (operator("Div", np.array(1, np.float32), ...), "'odd'", "not part of a function"),
        "per-batch constant": (operator("Add", ones((7, 3), np.float32)), "'odd'", "do not fit"),
        "reshape of wrong size": (operator("Reshape", np.array([-1, 5])), "'odd'", "can't become (", "5)"),
        "reshape across samples": (several(("Reshape", np.array([2, -1])), ("MatMul", ones((6, 2), np.float32))),
                                   "Reshape", "(batch, 3) can't become (2, "),
        "transposed batch": (operator("Transpose", perm=[1, 0]), "'odd'", "moves the batch"),
        "weights on the left": (operator("MatMul", ones((3, 3), np.float32), ...), "'odd'", "on the left"),
        "transposed operand": (operator("Gemm", ones((3, 3), np.float32), transA=1), "'odd'", "transposed"),
        "Clip upside down": (operator("Clip", np.array(6, np.float32), np.array(0, np.float32)), "'odd'", "6.0 and 0.0"),
        "Max of several": (operator("Max", np.arange(3, dtype=np.float32)), "'odd'", "one constant number"),
        "Einsum over the batch": (operator("Einsum", ones((3, 2), np.float32), equation="kb,kn->bn"), "'odd'", "kb,kn->bn"),
        "quantised weights": (lambda b: b("MatMul", b.node(*dequantize, name="odd")), "DequantizeLinear", "'odd'"),
        "cast to integers": (operator("Cast", to=TensorProto.INT64), "'odd'", "Cast to integers"),
        "no inputs": (lambda b: b.node("Gemm", [], name="odd"), "'odd'"),
        "one operand": (operator("Gemm"), "'odd'", "malformed"),
        "attribute of wrong type": (operator("Flatten", axis="one"), "'odd'", "malformed"),
        "random weights": (lambda b: b("Add", b.node("RandomNormal", [], name="odd", shape=[3])), "RandomNormal"),
        "mask of a dropout": (lambda b: b.nodes.append(helper.make_node("Dropout", ["t2"], ["d", "t3"], "odd")) or
                              setattr(b, "last", "t3"), "'odd'", "not supported"),
    }


@pytest.mark.parametrize("case", refusals())
def test_refused(rng, tmp_path, case):
    change, *words = refusals()[case]
    b = mlp(rng)
    change(b)
    path = tmp_path / "model.onnx"
    path.write_bytes(b.model().SerializeToString())
    refused(path, *words)


def test_no_layer(tmp_path):
    b = Builder([None, 12])
    b("Identity")
    refused(b.save(tmp_path), "no layer")


def test_several_outputs(rng, tmp_path):
    refused(mlp(rng).save(tmp_path, outputs=["t0", "t2"]), "several outputs")
    b = mlp(rng)
    b("Softmax")
    assert load_network(b.save(tmp_path, outputs=["t2", "t3"])).softmax     # logits and probabilities: one result


def test_integer_arithmetic(rng, tmp_path):
    b = Builder([None, 12], kind=TensorProto.UINT8)
    b("Div", np.array(255, np.uint8), name="odd")
    refused(b.save(tmp_path), "'odd'", "Cast to float")


def test_old_opset(rng, tmp_path):
    refused(mlp(rng, opset=7).save(tmp_path), "opset 7")


def test_claims_of_size(rng, tmp_path):
    b = mlp(rng)
    model = b.model()
    model.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path, "initialiser 'c0' can't be read")
    path.write_bytes(b"\x3a\xff\xff\xff\xff\x07" + b"x" * 100)        # a graph of 2 GiB
    refused(path, "not an ONNX model")


def test_not_a_model(tmp_path):
    refused(tmp_path, "directory")
    refused(tmp_path / "absent.onnx", "No such file")
    for name, content in {"empty": b"", "text": b"hello, world\n" * 9, "zeros": bytes(1000), "png": b"\x89PNG\r\n"}.items():
        path = tmp_path / name
        path.write_bytes(content)
        refused(path, "not an ONNX model")


def test_damaged_files(rng, tmp_path):
    """Cut anywhere, or with bytes changed anywhere: a network or a ModelError, nothing else."""
    content = mlp(rng).model().SerializeToString()
    path = tmp_path / "model.onnx"
    outcomes = []
    for trial in range(400):
        damaged = bytearray(content)
        if trial % 2:
            del damaged[rng.integers(len(content)):]
        else:
            for _ in range(rng.integers(1, 4)):
                damaged[rng.integers(len(content))] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            load_network(path)
            outcomes.append(trial % 2)
        except ModelError as error:
            assert "\n" not in str(error)
    assert outcomes and sum(outcomes) < 60          # data bytes may change unnoticed; a cut may only take the tail
