"""Independent ONNX interpreters: onnxruntime if it is installed, and the reference evaluator of the package `onnx`."""

import contextlib
import importlib.util
import logging
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..data.memory_limit import limited_memory
from ..frontend.messages import inline
from ..frontend.messages import title as node_title
from ..frontend.order import sort_nodes
from .onnxruntime_import import import_onnxruntime

__all__ = [
    "InterpreterError",
    "InterpreterSession",
    "available",
    "onnxruntime_of",
    "onnx_reference",
    "onnx_reference_binary64",
    "values_of",
    "overflow_of",
]


_UNLIMITED = 1 << 40  # bytes, for providers that reserve memory for devices


class InterpreterError(RuntimeError):
    """An error for a model that an interpreter cannot compute. The message is one line with the cause."""


class InterpreterSession:
    """A session of an interpreter with one loaded model.

    Parameters
    ----------
    title : str
        Name and version of the interpreter.
    compute : callable
        Maps {input: array} to the list of the requested tensors.
    speed : float
        Multiplications per second on one processor core: a rough lower bound.
    size : int
        Bytes of the model.
    """

    def __init__(self, title, compute, speed, size=0):
        self.title, self._compute, self.speed, self._size = title, compute, speed, size

    def __call__(self, feeds):
        """Computes the requested tensors for inputs {name: array}. Every exception inside the interpreter becomes an
        InterpreterError."""
        inputs = sum(getattr(values, "nbytes", 0) for values in feeds.values())
        with _as_refusal(self.title), limited_memory(self._size, inputs):
            return self._compute(feeds)


@contextlib.contextmanager
def _as_refusal(title):
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # interpreters raise exceptions of their own types, and unusual models cause any others
        text = f"{type(error).__name__}: {inline(error, 200)}"
        if isinstance(error, MemoryError) or "alloc" in str(error):
            text = "it takes more memory than its file and inputs explain; reduce the counts of loops or the sizes it computes"
        raise InterpreterError(f"{title}: {text}") from None


def _model(path, names):
    model = onnx.ModelProto()
    model.CopyFrom(sort_nodes(path if isinstance(path, onnx.ModelProto) else onnx.load(path)))
    outputs = {entry.name: entry for entry in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(outputs.get(name) or onnx.ValueInfoProto(name=name) for name in names)
    return model


def onnxruntime_of(path, names, providers=("CPUExecutionProvider",), optimized=False):
    """Returns a session of onnxruntime that computes the named tensors of a model, a file or an `onnx.ModelProto`. Raises
    InterpreterError if onnxruntime is not installed or rejects the model.

    Parameters
    ----------
    providers : sequence of str, or None
        Execution providers, in order of preference. None: all available providers.
    optimized : bool
        Allow onnxruntime to reorder operations and to use all processor cores.
    """
    title = "onnxruntime"
    with _as_refusal(title):
        onnxruntime = import_onnxruntime()
        title = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        if not optimized:
            options.intra_op_num_threads = 1
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        there = onnxruntime.get_available_providers()
        if absent := [name for name in providers or () if name not in there]:
            raise ValueError(f"no provider {', '.join(absent)}; it has {', '.join(there)}")
        content = _model(path, names).SerializeToString()
        providers = list(providers or there)
        size = len(content) if providers == ["CPUExecutionProvider"] else _UNLIMITED
        with limited_memory(size):
            session = onnxruntime.InferenceSession(content, options, providers=providers)
    return InterpreterSession(title, lambda feeds: session.run(list(names), feeds), 5e8, size)


def _evaluator(model, names, title):
    from onnx.reference import ReferenceEvaluator

    with _as_refusal(title):
        logging.getLogger("onnx").setLevel(logging.CRITICAL)
        evaluator = ReferenceEvaluator(model)
    return InterpreterSession(title, lambda feeds: evaluator.run(list(names), feeds), 1e7, model.ByteSize())


def _all_nodes(model):
    """Yields the nodes of a model, with those of local functions and of the graphs in attributes."""
    waiting = [node for function in model.functions for node in function.node] + list(model.graph.node)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for one in node.attribute for graph in (one.g, *one.graphs) for inner in graph.node]


_SAME = (b"SAME_UPPER", b"SAME_LOWER")


def onnx_reference(path, names):
    """Returns a session of the interpreter in the package `onnx`, which computes the named tensors of a model.

    This interpreter deviates from the ONNX specification in four cases. First, windows differ where ceil_mode is set, and where
    a ConvTranspose has output_shape without auto_pad; such models are refused. Second, before opset 14, BatchNormalization
    normalises with the statistics of its input, weighted with `momentum`, as in training; `momentum` is set to 1 to prevent this.
    Third, models with BatchNormalization before opset 9 are refused. Fourth, a Loop without condition does not run, and
    the results of each iteration are joined along a wrong axis; such models are refused.
    """
    title = f"onnx {onnx.__version__}"
    with _as_refusal(title):
        model = _model(path, names)
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
    for node in _all_nodes(model):
        if node.op_type == "Loop" and (not "".join(node.input[1:2]) or len(node.output) > max(0, len(node.input) - 2)):
            raise InterpreterError(
                f"{title}: does not follow ONNX in {node_title(node)} without condition or with a list of results; "
                "install onnxruntime"
            )
        if node.op_type == "BatchNormalization" and opset < 14:
            if opset < 9:
                raise InterpreterError(f"{title}: does not follow ONNX in {node_title(node)} before opset 9; install onnxruntime")
            kept = [one for one in node.attribute if one.name != "momentum"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("momentum", 1.0)])
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        if node.op_type == "ConvTranspose" and "output_shape" in attributes and attributes.get("auto_pad") not in _SAME:
            raise InterpreterError(
                f"{title}: does not follow ONNX in output_shape without auto_pad, which {node_title(node)} has; "
                "install onnxruntime"
            )
        if node.op_type in ("MaxPool", "AveragePool") and any(one.name == "ceil_mode" and one.i for one in node.attribute):
            raise InterpreterError(
                f"{title}: does not follow ONNX in ceil_mode, which {node_title(node)} has; install onnxruntime"
            )
    return _evaluator(model, names, title)


def onnx_reference_binary64(path, names):
    """Returns a session of the interpreter in the package `onnx`, with the model widened to binary64. The inputs must be binary64
    too."""
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
    """Widens floating-point types and constants to binary64 in place, in a graph and in the nodes of local functions."""
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
    """Returns constructors of the installed interpreters, best first. Each takes the path of a model and the names of the tensors
    to compute."""
    return [onnxruntime_of, onnx_reference] if importlib.util.find_spec("onnxruntime") else [onnx_reference]


def values_of(interpreter, origin, samples, sizes, wide=False, check=None):
    """Runs an interpreter on samples and returns its values, one row per sample. Raises InterpreterError if the interpreter
    fails, or if a tensor does not have the size given in `sizes`.

    Parameters
    ----------
    interpreter : InterpreterSession
        Session that computes `len(sizes)` tensors of the model.
    origin : sim.fusion.origin.Origin
    samples : float32 (count, size)
        Samples. If the model accepts any batch size, they form one batch. Otherwise they form batches of the model's size, the
        last one padded.
    sizes : list of int
        Elements of each value in one sample.
    wide : bool
        Floating-point inputs are binary64. Default: the model's types.
    check : function or None
        Called with the number of samples and the unchanged list of values of each batch. It may raise.

    Returns
    -------
    list of binary64 (count, elements of a sample)
    """
    if origin.batch is None:
        parts = [samples]
    else:  # repeat samples to pad the last batch
        size = origin.batch or 1
        rows = np.resize(np.arange(len(samples)), -(-len(samples) // size) * size)
        parts = [samples[rows[first : first + size]] for first in range(0, len(rows), size)]
    found = [interpreter(origin.feeds(part, wide)) for part in parts]
    for part, values in zip(parts, found):
        if check is not None:
            check(len(part), values)
    values = []
    for index, size in enumerate(sizes):
        arrays = [_numbers(part[index]) for part in found]
        counts = [None if array is None else array.size // size if array.size % size == 0 else None for array in arrays]
        if None in counts or sum(counts) < len(samples):
            raise InterpreterError(f"{interpreter.title}: one of its values does not have {size} elements per sample")
        values.append(np.concatenate([array.reshape(-1, size) for array in arrays])[: len(samples)])
    return values


def _numbers(value):
    """Converts a value to binary64. Returns None if the value is not an array of numbers."""
    value = np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None
    return value.astype(np.float64) if value is not None and value.dtype.kind in "fiubV" else None


#: Operators whose result may become infinite although the operands are finite and not at a pole of the function.
_OVERFLOWING = ("Add", "Cast", "CastLike", "Conv", "Div", "Exp", "Gemm", "MatMul", "Mul", "Pow", "ReduceSum", "Sub", "Sum")


def overflow_of(make, origin, sample):
    """Finds the first node that overflows in an interpreter for one sample. Returns its title, or None.

    A node overflows if its operands are finite, its result is infinite, and it does not divide by 0.
    """
    model = onnx.load(origin.path, load_external_data=False)
    names = [name for node in model.graph.node for name in node.output if name]
    rows = np.repeat(np.reshape(sample, (1, -1)), origin.batch or 1, axis=0)
    feeds = origin.feeds(rows)
    values = {**feeds, **{tensor.name: _constant(tensor) for tensor in model.graph.initializer}}
    try:
        values |= zip(names, make(origin.path, names)(feeds))
    except InterpreterError:
        return None
    infinite = {name for name, value in values.items() if not _finite(value)}
    for node in model.graph.node:
        if node.op_type in _OVERFLOWING and infinite.intersection(node.output) and not infinite.intersection(node.input):
            divisor = values[node.input[1]] if node.op_type == "Div" else 1
            if np.all(divisor != 0):
                return node_title(node)
    return None


def _constant(tensor):
    """Returns an initialiser of the model as an array. For external data, which is not read, it returns 1."""
    return np.ones(1) if onnx.external_data_helper.uses_external_data(tensor) else numpy_helper.to_array(tensor)


def _finite(value):
    numbers = _numbers(value)
    return numbers is None or bool(np.isfinite(numbers).all())
