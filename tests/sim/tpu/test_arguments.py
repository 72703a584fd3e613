"""Tests of arguments of the Python API: suggestions after typing errors, objects of frameworks, and tensors."""

import numpy as np
import onnx
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.digits import DataError
from training_runs import clusters


def named(module, name="Net", **members):
    return type(name, (), {"__module__": module, **members})()


class Tensor:
    """A tensor that needs a gradient: numpy cannot convert it before `detach`."""

    def __init__(self, array, needs_gradient=True):
        self.array, self.needs_gradient = array, needs_gradient

    def __array__(self, dtype=None, copy=None):
        if self.needs_gradient:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return self.array if dtype is None else self.array.astype(dtype)

    def detach(self):
        return Tensor(self.array, needs_gradient=False)

    def cpu(self):
        return self


def test_errors_suggest_the_name(path, rng):
    model, (x, y) = tpu.load(path), clusters(rng, 64)
    optimizer = named("torch.optim.adam", "Adam", __repr__=lambda self: "Adam (\nParameter Group 0\n    lr: 0.001\n)")
    for call, words in [
        (
            lambda: model.predict(x, on="verilater"),
            "`on` must be one of verilator, .*, not 'verilater'; did you mean 'verilator'",
        ),
        (lambda: model.predict(x, on=["verilator"]), r"`on` must be one of .*, not \['verilator'\]$"),
        (lambda: model.predict(x, on=tpu.Simulator("Verilator")), "`Simulator.name` must be .* did you mean 'verilator'?"),
        (lambda: model.profile(x, "verilater"), "`on` must be one of verilator, icarus.* did you mean 'verilator'?"),
        (lambda: model.fit(x, y, check_steps=1, on="modell"), "`on` must be .*; did you mean 'model'?"),
        (lambda: model.compare(x, against="onnxruntim"), "`against` must be .*; did you mean 'onnxruntime'?"),
        (lambda: model.fit(x, y, optimizer="Adam"), "`optimizer` must be .* not 'Adam'; did you mean 'adam'?"),
        (lambda: model.fit(x, y, optimizer=optimizer), "`optimizer` must be .*, not an object of torch.optim.adam.Adam$"),
        (lambda: model.fit(x, y, loss=named("torch.nn", "Loss")), "`loss` must be one of cross_entropy, .*, not "),
        (lambda: model.fit(x, y, epochs=np.zeros((9, 9))), "`epochs` must be .*, not an object of numpy.ndarray$"),
        (lambda: tpu.Simulator("icarus", cells="native"), "`cells` must be rtl, or native with"),
        (lambda: model.predict(x, tpu.SerialBoard("x"), core="tiny"), "a board has its own core"),
    ]:
        with pytest.raises(tpu.ArgumentError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_load_names_the_call_for_a_framework():
    """A model of a framework is refused with the call that converts it, and any other object with the valid types."""
    for given, words in [
        (named("torch.nn.modules.linear", "Linear"), r"not an object of Linear; convert .* tpu.from_torch\(module, example\)$"),
        (named("keras.src.models", "Sequential"), r"not an object of Sequential; convert .* tpu.from_keras\(model\)$"),
        (None, "`model` must be a path, an onnx.ModelProto or bytes of a file, not an object of NoneType$"),
        (onnx.GraphProto(), "not an object of GraphProto$"),
    ]:
        with pytest.raises(tpu.ArgumentError, match=words):
            tpu.load(given)


def test_from_keras_of_a_torch_module_needs_no_keras():
    with pytest.raises(tpu.ArgumentError, match=r"`model` must be a keras.Model, not .* Linear; convert .* tpu.from_torch\("):
        tpu.from_keras(named("torch.nn.modules.linear", "Linear"))


def test_tensors_are_arrays(path, rng):
    """Samples and labels may be tensors, also ones that need a gradient."""
    x, y = clusters(rng, 64)
    model, other = tpu.load(path), tpu.load(path)
    np.testing.assert_array_equal(model.predict(Tensor(x)), model.predict(x))
    np.testing.assert_array_equal(model.predict({"x": Tensor(x)}), model.predict(x))
    model.fit(Tensor(x), Tensor(y), validation_data=(Tensor(x), Tensor(y)))
    other.fit(x, y, validation_data=(x, y))
    assert model.evaluate(Tensor(x), Tensor(y)) == other.evaluate(x, y)


def test_lists_of_unequal_arrays_are_refused():
    """The message is ours and not numpy's; a list of equal parts is an array."""
    model = tpu.load("d")
    for x in ([np.zeros((2, 784)), np.zeros((3, 784))], [np.zeros(784), [1, 2]], ([1], [1, 2])):
        with pytest.raises(
            DataError, match="^samples: a list of 2 parts of different shapes .* one array with a row for each sample"
        ):
            model.predict(x)
    assert model.predict([np.zeros(784), np.zeros(784)]).shape == (2, 10)


def test_list_of_the_inputs_is_refused():
    """A list with an array for each input is not taken for two samples; a list of rows is an array."""
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xyz"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Sub", ["x", "y"], ["z"])], "two", ends[:2], ends[2:])
    model = tpu.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8))
    x, y = np.arange(8.0).reshape(2, 4), np.ones((2, 4))
    for given in ([x, y], (x, y)):
        with pytest.raises(
            DataError, match="^a list of arrays does not name the model's inputs; give a dict, {'x': ..., 'y': ...}$"
        ):
            model.predict(given)
    wanted = model.predict({"x": x, "y": y}, check=False)
    assert (wanted == x - y).all()
    assert (model.predict([*np.concatenate([x, y], axis=1)], check=False) == wanted).all()
