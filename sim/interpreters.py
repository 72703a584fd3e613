"""ONNX interpreters that were not written here: onnxruntime where it is installed, and the one in the package `onnx`."""

import contextlib
import importlib.util
import logging
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .onnx_flow import inline

__all__ = ["InterpreterError", "Interpreter", "available", "onnxruntime_of", "onnx_reference", "onnx_reference_binary64"]


class InterpreterError(RuntimeError):
    """An interpreter can't compute a model; one line that says why."""


class Interpreter:
    """One interpreter with one model.

    Parameters
    ----------
    title : str
        Its name and version.
    compute : callable
        From {input: array} to the list of the values that were asked for.
    speed : float
        Multiplications in a second, roughly and on one core, at worst.
    """

    def __init__(self, title, compute, speed):
        self.title, self._compute, self.speed = title, compute, speed

    def __call__(self, feeds):
        """The values. Raises InterpreterError, whatever happened inside."""
        with _as_refusal(self.title):
            return self._compute(feeds)


@contextlib.contextmanager
def _as_refusal(title):
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:                  # its own kinds of errors, and whatever a strange model leads to
        raise InterpreterError(f"{title}: {type(error).__name__}: {inline(error, 200)}") from None


def _model(path, names):
    """The model in a file, with these of its values as outputs."""
    model = onnx.load(path)
    outputs = {entry.name: entry for entry in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(outputs.get(name) or onnx.ValueInfoProto(name=name) for name in names)
    return model


def onnxruntime_of(path, names):
    """onnxruntime with a model; it raises InterpreterError if it is not installed or refuses the model."""
    title = "onnxruntime"
    with _as_refusal(title):
        import onnxruntime
        title = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(_model(path, names).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Interpreter(title, lambda feeds: session.run(list(names), feeds), speed=5e8)


def _evaluator(model, names, title):
    from onnx.reference import ReferenceEvaluator
    with _as_refusal(title):
        logging.getLogger("onnx").setLevel(logging.CRITICAL)
        evaluator = ReferenceEvaluator(model)
    return Interpreter(title, lambda feeds: evaluator.run(list(names), feeds), speed=1e7)


def onnx_reference(path, names):
    """The interpreter of the package `onnx` with a model."""
    title = f"onnx {onnx.__version__}"
    with _as_refusal(title):
        model = _model(path, names)
    return _evaluator(model, names, title)


def onnx_reference_binary64(path, names):
    """The same with all that is binary32 in the model as binary64; so are its inputs to be."""
    title = f"onnx {onnx.__version__} in binary64"
    with _as_refusal(title):
        model = _model(path, names)
        _widen(model.graph, [node for function in model.functions for node in function.node])
    return _evaluator(model, names, title)


_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _wide(tensor):
    if tensor.data_type not in _NARROW:
        return tensor
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _widen(graph, inner):
    """Makes what is binary32, or less, binary64 in a graph, and in the nodes of local functions, in place."""
    del graph.value_info[:]
    for entry in (*graph.input, *graph.output):
        if entry.type.tensor_type.elem_type in _NARROW:
            entry.type.tensor_type.elem_type = TensorProto.DOUBLE
    tensors = [_wide(tensor) for tensor in graph.initializer]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    for node in (*graph.node, *inner):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                attribute.t.CopyFrom(_wide(attribute.t))
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                value = np.array(helper.get_attribute_value(attribute), np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))


def available():
    """The interpreters to ask, the best first: functions of a model's path and the names of the values wanted."""
    return [onnxruntime_of, onnx_reference] if importlib.util.find_spec("onnxruntime") else [onnx_reference]
