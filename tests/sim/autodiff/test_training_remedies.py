"""Tests that the remedy of a refusal of training works: each model is refused, and trained once it is changed as it says."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from amaranth_tpu.sim.autodiff import embeddings, refusals
from amaranth_tpu.sim.autodiff.make_step import make_step
from amaranth_tpu.sim.autodiff.refusals import REFUSALS
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.export.writer import ModelWriter
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.functions.functions import RELU
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.ir.stage import Tensor
from amaranth_tpu.sim.trainer.new_training import trainable_network
from onnx_models import Builder
from stage_graphs import GivenStage, GivenTerm, linked

ROWS, IMAGE, VECTOR, MSE, CLASSES, BINARY = (
    ("n", 2, 4),
    ("n", 2, 6, 6),
    ("n", 4),
    Loss.SQUARED_ERROR,
    Loss.CROSS_ENTROPY,
    Loss.BINARY,
)


def numbers(*shape):
    return (np.arange(np.prod(shape)).reshape(shape) % 7 / 7 - 0.4).astype(np.float32)


def chain(shape, *steps):
    """Returns a builder of consecutive nodes, each `(operator, constants..., attributes)`."""
    b = Builder(list(shape), opset=17)
    for operator, *inputs in steps:
        attributes = inputs.pop() if inputs and isinstance(inputs[-1], dict) else {}
        b(operator, *inputs, **attributes)
    return b


DENSE, CONV, FLAT = ("MatMul", numbers(4, 4)), ("Conv", numbers(3, 2, 1, 1)), ("Flatten",)
WIDE = {"kernel_shape": [3, 3], "strides": [1, 1]}
PADDED = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}
NORM = ("InstanceNormalization", numbers(3) + 1, numbers(3))
LARGE, PART = {"kernel_shape": [16, 16], "strides": [16, 16]}, {"kernel_shape": [4, 4], "strides": [4, 4]}


def boxes(*last):
    """Returns a builder of two images of boxes that are one result, with nodes after them."""
    b = Builder(["n", 2, 6, 6], opset=17)
    large = b(*CONV)
    heads = [large, b.node("MaxPool", [large], **WIDE | {"strides": [2, 2]})]
    heads = [b.node("Transpose", [b.node("Conv", [one, numbers(6, 3, 1, 1)])], perm=[0, 2, 3, 1]) for one in heads]
    b.node("Concat", [b.node("Reshape", [one, np.array([0, -1, 3])]) for one in heads], axis=1)
    for one in last:
        b(*one)
    return b


#: name -> (model, its loss, the model that the remedy describes, its loss)
REMEDIES = {
    "function": (chain(VECTOR, DENSE, ("Reciprocal",), DENSE), MSE, chain(VECTOR, DENSE, ("Tanh",), DENSE), MSE),
    "position": (
        chain(("n", 2, 9, 9), CONV, NORM, CONV2 := ("Conv", numbers(2, 3, 1, 1)), FLAT),
        MSE,
        chain(("n", 2, 9, 9), CONV, ("LayerNormalization", numbers(9) + 1, numbers(9)), CONV2, FLAT),
        MSE,
    ),
    "copies": (
        chain(ROWS, DENSE, ("Tile", np.array([1, 65, 1])), DENSE),
        MSE,
        chain(ROWS, DENSE, FLAT, ("MatMul", numbers(8, 520)), ("Reshape", np.array([0, 130, 4])), DENSE),
        MSE,
    ),
    "windows": (
        chain(("n", 2, 16, 16), CONV, ("Relu",), ("MaxPool", LARGE), FLAT),
        MSE,
        chain(("n", 2, 16, 16), CONV, ("Relu",), ("MaxPool", PART), ("MaxPool", PART), FLAT),
        MSE,
    ),
    "padding": (
        chain(IMAGE, CONV, ("MaxPool", PADDED), FLAT),
        MSE,
        chain(IMAGE, CONV, ("Relu",), ("MaxPool", PADDED), FLAT),
        MSE,
    ),
    "table": (
        chain(IMAGE, CONV, ("MaxPool", WIDE), ("Tanh",), FLAT),
        MSE,
        chain(IMAGE, CONV, ("MaxPool", WIDE), ("Relu",), FLAT),
        MSE,
    ),
    "end": (chain(VECTOR, DENSE, ("Tanh",)), CLASSES, chain(VECTOR, DENSE, ("Tanh",)), MSE),
    "end, logits": (chain(VECTOR, DENSE, ("Tanh",)), BINARY, chain(VECTOR, DENSE), BINARY),
    "class": (chain(VECTOR, ("MatMul", numbers(4, 1))), CLASSES, chain(VECTOR, ("MatMul", numbers(4, 1))), BINARY),
    "class, squared error": (chain(VECTOR, ("MatMul", numbers(4, 1))), CLASSES, chain(VECTOR, ("MatMul", numbers(4, 1))), MSE),
    "order": (
        chain(VECTOR, DENSE, ("Gather", np.array([0, 0, 1]), {"axis": 1})),
        CLASSES,
        chain(VECTOR, DENSE, ("Gather", np.array([0, 0, 1]), {"axis": 1}), ("MatMul", numbers(3, 3))),
        CLASSES,
    ),
}


OTHERS = {
    "several tensors, which can't be trained; put a dense layer": (boxes(), MSE, boxes(("MatMul", numbers(3, 3))), MSE),
    "no weights that could be trained; add a layer": (chain(VECTOR, ("Tanh",)), MSE, chain(VECTOR, ("Tanh",), DENSE), MSE),
}


def trained(builder, loss, folder):
    make_step(with_parameters(load_network(builder.save(folder)), loss), Sgd())


def follow(case, words, folder):
    model, loss, other, other_loss = case
    with pytest.raises(ModelError) as refused:
        trained(model, loss, folder)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    trained(other, other_loss, folder)


@pytest.mark.parametrize("name", REMEDIES)
def test_remedy(tmp_path, name):
    text = REFUSALS[name.partition(",")[0]][1]
    follow(REMEDIES[name], text.partition("{}")[2] or text, tmp_path)


@pytest.mark.parametrize("words", OTHERS)
def test_remedy_of_a_network(tmp_path, words):
    follow(OTHERS[words], words, tmp_path)


def graphs_refused():
    """Returns {name: (graph, graph that the remedy describes)} of refusals that no ONNX file is known to reach."""
    first = GivenStage("first", "d", (GivenTerm("x", numbers(1, 1, 3, 4)),))
    copied = GivenStage("copy", "t", (GivenTerm("d", np.ones((1, 1, 1, 4), np.float32), groups=4, fixed=True),), origin=(0, 1))
    trained = GivenTerm("d", numbers(1, 1, 4, 4))
    last = GivenStage("last", "y", (GivenTerm("t", numbers(1, 2, 4, 3)),))
    own = GivenStage("own", "f", (trained,), function=RELU)
    term = replace(copied.terms[0], source="f")
    parts = [
        linked("g", Tensor("x", 3), (first, *stages, copied, last))
        for stages in ([replace(copied, terms=(trained,), origin=(0, 0))], [own, replace(copied, terms=(term,), origin=(0, 0))])
    ]
    end, values = linked("g", Tensor("x", 3), (first,)), numbers(3, 3)
    alike = [dense_chain("g", [("one", values, None, "relu"), ("two", two, None, "none")]) for two in (values, 2 * values)]
    more = end.copied()
    more.add_stage(replace(more.stages[0], output="after", terms=(replace(more.stages[0].terms[0], fixed=True),)), 4)
    return {"parts": parts, "output": (replace(more, output="d"), end), "shared": alike}


@pytest.mark.parametrize("name", graphs_refused())
def test_remedy_in_a_graph(name):
    refused, other = graphs_refused()[name]
    with pytest.raises(ModelError) as error:
        with_parameters(refused, MSE, apart=lambda: None)
    assert REFUSALS[name][1] in str(error.value)
    make_step(with_parameters(other, MSE, apart=lambda: None), Sgd())


def test_weights_of_a_file(tmp_path):
    """A file whose nodes compute weights, before a product of two results, cannot hold trained weights."""

    def writer(*weights):
        b = Builder(list(VECTOR), opset=17)
        x = b.node("MatMul", ["x", b.node("Mul", list(weights)) if len(weights) > 1 else weights[0]])
        b.node("MatMul", [b.node("Mul", [x, b.node("Sigmoid", [x])]), numbers(4, 4)])
        return ModelWriter(trainable_network(load_network(b.save(tmp_path)), MSE))

    with pytest.raises(
        ModelError, match="cannot hold the new weights, and a plain .*; write the weights of each layer as one init"
    ):
        writer(numbers(4, 4), numbers(4, 1))
    assert writer(numbers(4, 4)).own_form


def test_training_info(tmp_path):
    path = chain(VECTOR, DENSE).save(tmp_path)
    model = onnx.load(path)
    model.training_info.add()
    onnx.save(model, path)
    with pytest.raises(ModelError, match="model.onnx: has training_info, which is not supported; export the model without it"):
        trainable_network(load_network(path), MSE)
    del model.training_info[:]
    onnx.save(model, path)
    trainable_network(load_network(path), MSE)


def test_a_large_table(tmp_path, monkeypatch):
    def model(rows):
        b = Builder(["n", 3], opset=17, kind=TensorProto.INT64)
        b.node("Gather", [numbers(rows, 4), "x"])
        b(*DENSE)
        return b

    monkeypatch.setattr(embeddings, "MOST_ROWS", 8)
    follow((model(9), MSE, model(8), MSE), "has 9 rows; give it 8 at most", tmp_path)


#: Words of each other message of a ModelError in the rooms of training -> the test that follows its remedy.
FOLLOWED = {
    "several tensors, which can't": "autodiff/test_training_remedies.py::test_remedy_of_a_network",
    "no weights that could be trained": "autodiff/test_training_remedies.py::test_remedy_of_a_network",
    "its table of embeddings": "autodiff/test_training_remedies.py::test_a_large_table",
    "give it the graph before the passes": "autodiff/test_make_step.py::test_graphs_changed_by_passes_are_refused",
    "is not a vector of logits": "tpu/test_several_outputs.py::test_images_as_outputs",
    "it drops values of": "tpu/test_dropouts.py::test_samples_that_are_no_slices",
    "are not found in its export": "tpu/test_source.py::test_dropout_of_the_object",
    "all its weights are frozen": "tpu/test_source.py::test_a_frozen_network_is_refused",
    "are constants of the network": "tpu/test_source.py::test_weights_that_stay_constant_are_refused",
    "are combined with trained ones": "tpu/test_source.py::test_frozen_weights_that_are_combined_are_refused",
    "has no running statistics": "tpu/test_frameworks.py::test_torch_without_running_statistics",
    "its inputs are not known": "tpu/test_keras_words.py::test_models_without_known_inputs",
    "its forward fails on the example": "tpu/test_frameworks.py::test_torch_exporter_errors",
    "cannot export it": "tpu/test_frameworks.py::test_torch_exporter_errors",
    "tpu.load(file).fit trains it": "tpu/test_several_outputs.py::test_two_inputs_and_four_outputs",
    "has training_info": "autodiff/test_training_remedies.py::test_training_info",
}
#: Messages whose words another function makes.
JOINED = {
    "autodiff/refusals.py": "autodiff/test_training_remedies.py::test_remedy",
    "export/writer.py": "autodiff/test_training_remedies.py::test_weights_of_a_file",
    "tpu/source.py": "tpu/test_frameworks.py::test_keras_functions_of_recurrent_layers",
}
ROOMS = [
    "autodiff/*.py",
    "trainer/*.py",
    "export/writer.py",
    "tpu/fit.py",
    "tpu/trainable.py",
    "tpu/source.py",
    "tpu/dropouts.py",
]
ROOMS += ["tpu/torch_modules.py", "tpu/keras_*.py", "tpu/exports.py"]


def messages():
    """Yields the file, in `sim`, and the literal words of each ModelError in the rooms of training."""
    root = Path(refusals.__file__).parents[1]
    for path in (path for room in ROOMS for path in root.glob(room)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ModelError":
                words = [
                    one.value for one in ast.walk(node.args[0]) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                ]
                yield path.relative_to(root).as_posix(), "".join(words)


def test_each_refusal_has_a_remedy_that_is_followed():
    assert {*REFUSALS} == {name.partition(",")[0] for name in REMEDIES} | {*graphs_refused()}
    assert all(text.count(";") == 1 for _, text in REFUSALS.values())
    tests = Path(__file__).parents[1]
    for path, text in messages():
        (found,) = [test for words, test in FOLLOWED.items() if words in text] or [JOINED[path]]
        file, _, name = found.partition("::")
        assert f"def {name}(" in (tests / file).read_text(), f"{text!r} has no test that follows its remedy"
