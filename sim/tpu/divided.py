"""An ONNX model that is divided between the core and the host."""

import logging
from math import prod

import numpy as np
from onnx import helper
from onnx.external_data_helper import load_external_data_for_model, uses_external_data

from ..data.errors import DataError
from ..data.printable import printable, quoted
from ..frontend.division import divide
from ..frontend.inputs import check_sizes
from ..frontend.messages import inline
from ..frontend.reader import checked_model, model_of
from ..frontend.static_graph import RANDOM, static_graph
from ..ir.errors import ModelError
from ..rtl.host_memory import HOST_LATENCY
from .arguments import also_named, as_array
from .cores import config_of, host_of
from .divided_parts import made_parts
from .divided_run import DividedRun, Row
from .estimate import estimate_of
from .inference_run import RunError, checked
from .inputs_outputs import Value
from .places import Interpreter, place_of

__all__ = ["DividedModel"]

_MOST_DIVISIONS = 4  # kept per model, one for each batch size
_WORTH = 0.01  # share of the multiplications on the core from which on it is of use


class DividedModel:
    """An ONNX model of which the core computes the largest parts that it can, and the host the other nodes. Created by
    :func:`load` for models that the core cannot run alone.

    The host computes with onnxruntime if it is installed, else with the interpreter in the package `onnx`. Methods have the
    arguments of :class:`.Model`. A model is divided for one shape of its inputs at a time: an open batch is as large as the
    array given. If the batch is fixed, larger arrays are run in groups of this size.

    Attributes
    ----------
    inputs, outputs : tuple of Value
    refusal : ModelError
        The reason why the core cannot run the model alone.
    """

    def __init__(self, path, refusal, *, keep_softmax=False, shapes=None, effort="best", weights=None, file=None):
        self.path, self.refusal, self._file, self.check_programs = path, refusal, file, True
        self._keep_softmax, self._effort, self._weights = keep_softmax, effort, weights
        try:
            original = model_of(path)
            self._model = checked_model(original, shapes)
            self._constants = _scalars(original, shapes or {})
            _load_external(self._model, path.parent)
            stored = {tensor.name for tensor in self._model.graph.initializer}
            self._entries = [entry for entry in self._model.graph.input if entry.name not in stored]
            check_sizes(self._entries)
        except ModelError as error:
            raise ModelError(inline(str(error) if str(error).startswith(f"{path}: ") else f"{path}: {error}", 600)) from None
        self._divisions = {}
        self._checked = set()
        self.inputs = tuple(_value(entry) for entry in self._entries)
        graph, more = self._division(1)[0], self._static(2) if self._is_open else None
        self.outputs = tuple(_result(graph, name, more) for name in graph.outputs)
        logging.getLogger(__name__).warning("%s: %s", printable(path), self.summary)

    @property
    def name(self):
        return printable(self.path.stem)

    def __repr__(self):
        ends = (", ".join(f"{value.name} {value.shape}" for value in values) for values in (self.inputs, self.outputs))
        return f"<DividedModel {self.name}: {' -> '.join(ends)}>"

    # The division

    def _division(self, count):
        """Returns `(StaticGraph, list of RunPart)` for a batch size, if the batch is open."""
        count = count if self._is_open else 1
        if count not in self._divisions:
            graph = self._static(count)
            parts = divide(graph, self._keep_softmax, None if self._is_open else self.refusal)
            while len(self._divisions) >= _MOST_DIVISIONS:
                del self._divisions[next(iter(self._divisions))]
            self._divisions[count] = graph, made_parts(graph, parts, name=self.name, effort=self._effort, weights=self._weights)
        for part in self._divisions[count][1]:
            if part.model is not None:
                part.model.check_programs = self.check_programs
        return self._divisions[count]

    @property
    def _is_open(self):
        return any(map(_opens, self.inputs))

    def _static(self, count):
        """Returns the :class:`.StaticGraph` of the model for a size of the open batch."""
        model = type(self._model)()
        model.CopyFrom(self._model)
        for entry in model.graph.input:
            for dim in entry.type.tensor_type.shape.dim[:1]:
                if dim.dim_value < 1 and entry.name not in self._constants:
                    dim.dim_value = count
        return static_graph(model, self.path.parent)

    def parts(self, batch=1):
        """Returns the parts in the order of the computation, as a list of :class:`.RunPart`."""
        return self._division(batch)[1]

    def values(self, arrays, batch):
        """Computes the values between the parts by the golden model and the host. `arrays` has the inputs by name, in the
        shapes of the file."""
        return self._values(arrays, batch, lambda part, values: part.on_core(values, "golden", None, None))[0]

    def table(self, batch=1):
        """Returns what runs where: a list of :class:`Row`, in the order of the computation."""
        graph, parts = self._division(batch)
        total = max(1, sum(part.part.multiplications for part in parts))
        return [Row.of(graph, part, total) for part in parts]

    @property
    def share(self):
        """Returns the share of the multiplications that the core computes, 0 to 1."""
        return sum(row.share for row in self.table() if row.on_core)

    @property
    def summary(self):
        """Returns a line about the nodes that the host computes."""
        rows = self.table()
        nodes = sum(row.nodes for row in rows if not row.on_core)
        why = next((reason for row in rows for reason in row.why), "")
        worth = "" if self.share >= _WORTH else "; this is not worth the core"
        return (
            f"the core computes {self.share:.1%} of the multiplications{worth}, the host {nodes} of "
            f"{sum(row.nodes for row in rows)} nodes, because of {why or 'constant results'}"
        )

    @property
    def is_random(self):
        """Returns True if nodes of the model draw random numbers."""
        return any(node.op_type in RANDOM for node in self._model.graph.node)

    # Runs

    @also_named("batch", "batch_size")
    def run(self, x, on="golden", *, core=None, batch=None, progress=None):
        """Executes the model on a backend, as :meth:`.Model.run` does. Returns a :class:`.DividedRun`."""
        place = place_of(on)
        arrays, count, alone = self._arrays(x)
        groups = [self._run(one, count, place, core, batch, progress) for one in arrays]
        names = [value.name for value in self.outputs]
        outputs = {name: _joined([values[name] for values, _ in groups], alone) for name in names}
        return DividedRun(self, place, arrays, count, outputs, [runs for _, runs in groups])

    def _run(self, arrays, count, place, core, batch, progress):
        graph, parts = self._division(count)
        if isinstance(place, Interpreter):
            session = place.make(self.path, graph.outputs)
            return dict(zip(graph.outputs, session(arrays | self._constants))), []
        return self._values(arrays, count, lambda part, values: part.on_core(values, place, core, batch, progress))

    def _values(self, arrays, count, on_core):
        """Computes all parts. Returns `(values by name, [(part, its run or None)])`."""
        graph, parts = self._division(count)
        values, runs = dict(arrays), []
        for part in parts:
            found, run = (part.on_host(values), None) if part.model is None else on_core(part, values)
            values |= found
            runs.append((part, run))
        return values, runs

    @also_named("batch", "batch_size")
    def predict(self, x, on="golden", *, core=None, batch=None, check=True):
        """Computes the outputs of the model, as :meth:`.Model.predict` does, with the file's names, shapes and types."""
        run = self.run(x, on, core=core, batch=batch).check()
        if check and not isinstance(run.place, Interpreter) and repr(run.place) not in self._checked:
            error = run.compare().error
            if error:
                raise RunError(f"{error}; `check=False` skips this comparison")
            self._checked.add(repr(run.place))
        return run.output

    @also_named("batch", "batch_size")
    def compare(self, x, on="golden", against=None, *, core=None, batch=None, most=8):
        """Executes the model, and compares the results with an ONNX interpreter, as :meth:`.Model.compare` does. Each part of the
        core is compared on its own operands, too."""
        return self.run(x, on, core=core, batch=batch).check().compare(against, most)

    @also_named("batch", "batch_size")
    def trace(self, x, on="golden", *, core=None, batch=None):
        """Computes the tensors of all layers of the core, as :meth:`.Model.trace` does, by the names of the ONNX tensors."""
        place, (arrays, count, _), found = place_of(on), self._arrays(x), []

        def traced(part, values):
            layers.update(part.model.trace(part.given(values), place, core=core, batch=batch))
            return part.on_core(values, "golden" if isinstance(place, Interpreter) else place, core, batch)

        for one in arrays:
            layers = {}
            for _, run in self._values(one, count, traced)[1]:
                checked(getattr(run, "result", None))
            found.append(layers)
        return {name: np.concatenate([layers[name] for layers in found]) for name in found[0]}

    # Programs

    @also_named("batch", "batch_size")
    def compile(self, core=None, batch=1, progress=None):
        """Compiles the parts of the core for a batch size. Returns a list of :class:`sim.compiler.program.Program`."""
        return [part.model.compile(core, part.samples, progress) for part in self._division(batch)[1] if part.model]

    @also_named("batch", "batch_size")
    def estimate(self, core=None, batch=1, memory=str(HOST_LATENCY)):
        """Estimates the cost of the parts of the core, together. Returns an :class:`Estimate`, without the host's time."""
        parts = [part for part in self._division(batch)[1] if part.model]
        config = config_of(core)
        programs = [part.model._compile(part.model.network, config, part.samples, check=False) for part in parts]
        programs = [program.with_host(host_of(memory)) for program in programs]
        return estimate_of(programs, config, batch)

    def _refused(self, *given, **named):
        raise self.refusal

    fit = evaluate = profile = _refused

    # Arrays

    def _arrays(self, x):
        """Returns `(groups of arrays by name, batch size, True if there is one group in the shapes of the file)`."""
        names = [value.name for value in self.inputs]
        lists = {value.name for value in self.inputs if value.shape is None}  # sequences of tensors
        if isinstance(x, dict):
            x = {name: one if name in lists else as_array(one) for name, one in x.items()}
        elif not lists:
            x = as_array(x)
        if not isinstance(x, dict):
            if len(names) != 1:
                raise DataError(f"the model has the inputs {', '.join(map(quoted, names))}; give a dict of arrays by these names")
            x = {names[0]: x}
        if set(x) != set(names):
            given = ", ".join(map(quoted, map(str, x))) or "nothing"
            raise DataError(f"the model's inputs are {', '.join(map(quoted, names)) or 'none'}, not {given}")
        shaped = {value.name: _shaped(value, x[value.name]) for value in self.inputs}
        counts = {value.name: len(shaped[value.name]) for value in self.inputs if value.shape}
        opened = {counts[value.name] for value in self.inputs if _opens(value)}
        if len(opened) > 1:
            raise DataError(f"the inputs have different batches: {', '.join(f'{quoted(n)} {c}' for n, c in counts.items())}")
        if opened:
            return [shaped], opened.pop(), True
        groups = {counts[value.name] // max(1, value.shape[0]) for value in self.inputs if value.shape} or {1}
        if groups == {1}:
            return [shaped], 1, True
        if len(groups) > 1 or any(not value.shape for value in self.inputs):
            raise DataError("the inputs have different numbers of samples; give each the shape of the model")
        number = groups.pop()
        return [{name: np.split(array, number)[one] for name, array in shaped.items()} for one in range(number)], 1, False


def _opens(value):
    """Returns True if the first size of an input is open."""
    return bool(value.shape) and value.shape[0] is None


def _shaped(value, array):
    """Returns an array in the type of an input, and in its shape but for the number of samples."""
    if value.shape is None:
        return array
    array = np.asarray(array)
    if value.dtype.kind != "O":
        if array.dtype.kind not in "fiubV":
            raise DataError(f"input {quoted(value.name)}: it must be numbers, not {array.dtype}")
        array = array.astype(value.dtype)
    fixed, sample = value.shape, value.shape[1:]
    if fixed and array.ndim and array.shape != fixed and array.shape[1:] != sample and array.shape[0]:
        if array.size // array.shape[0] == prod(sample):
            array = array.reshape(-1, *sample)
    rows = fixed[0] if fixed else None
    fits = array.shape == fixed or bool(fixed) and array.shape[1:] == sample and array.ndim and not array.shape[0] % (rows or 1)
    if not fits:
        shape = f"({', '.join('count' if size is None else str(size) for size in fixed)})"
        raise DataError(f"input {quoted(value.name)}: an array of shape {array.shape} does not fit; it takes {shape}")
    return np.ascontiguousarray(array) if array.ndim else array


def _joined(arrays, alone):
    if alone:
        return arrays[0]
    return np.concatenate(arrays) if np.ndim(arrays[0]) else np.stack(arrays)


def _value(entry):
    kind = entry.type.tensor_type
    if not entry.type.HasField("tensor_type"):
        return Value(entry.name, None, np.dtype(object))
    if not kind.HasField("shape"):
        raise ModelError(f"input {quoted(entry.name)} has no shape; export the model with one")
    dims = enumerate(kind.shape.dim)
    shape = tuple(dim.dim_value if dim.dim_value > 0 or axis and dim.HasField("dim_value") else None for axis, dim in dims)
    return Value(entry.name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)))


def _result(graph, name, more):
    """Returns the :class:`.Value` of an output. Sizes that differ in the graph `more`, of another batch size, are None."""
    kind, shape = graph.kinds.get(name, (0, None))
    other = more.shape(name) if more and shape is not None else shape
    shape = None if other is None else tuple(size if size == one else None for size, one in zip(shape, other))
    return Value(name, shape, np.dtype(helper.tensor_dtype_to_np_dtype(kind) if kind else object))


def _scalars(model, shapes):
    """Returns the values that the user gave to scalar inputs, as arrays by name."""
    entries = {entry.name: entry.type.tensor_type for entry in model.graph.input}
    return {
        name: np.asarray(value, helper.tensor_dtype_to_np_dtype(entries[name].elem_type)).reshape(())
        for name, value in shapes.items()
        if name in entries and not entries[name].shape.dim
    }


def _load_external(model, folder):
    if any(map(uses_external_data, model.graph.initializer)):
        try:
            load_external_data_for_model(model, str(folder))
        except Exception as error:  # of the package onnx, for files that are missing or damaged
            raise ModelError(f"its external data cannot be read: {inline(error)}") from None
