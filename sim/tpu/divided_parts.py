"""The parts of a divided model: programs of the core, and nodes that an ONNX interpreter of the host computes."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from onnx import helper

from ..check.interpreters import InterpreterError, available
from ..data.errors import DataError
from ..data.printable import quoted
from ..frontend.division import nodes_model
from ..golden.weight_formats import rounded_network
from .model import Model
from .temporary_file import TemporaryFile

__all__ = ["RunPart", "HostSession", "made_parts"]


class HostSession:
    """A session of the best installed interpreter that computes the named values of an `onnx.ModelProto`.

    Calls take the inputs and return the values, `{name: array}`. They raise InterpreterError.
    """

    def __init__(self, model, names):
        self._model, self._names, self._makers, self._session = model, list(names), available(), None

    def __call__(self, feeds):
        reasons = []
        while self._makers:
            try:
                self._session = self._session or self._makers[0](self._model, self._names)
                return dict(zip(self._names, self._session(feeds)))
            except InterpreterError as error:
                reasons.append(str(error))
                self._makers, self._session = self._makers[1:], None
        self._makers = available()
        raise InterpreterError("; ".join(reasons))


@dataclass(frozen=True, eq=False)
class RunPart:
    """A part of a divided model that can run.

    Attributes
    ----------
    part : sim.frontend.division.Part
    onnx : onnx.ModelProto
        The part as a model of its own.
    kinds : dict
        `{name: (element type, shape or None)}` of inputs and outputs.
    model : Model or None
        The part on the core. None if the host computes it.
    """

    part: object
    onnx: object = field(repr=False)
    kinds: dict = field(repr=False)
    model: object = None

    @cached_property
    def session(self):
        return HostSession(self.onnx, self.part.outputs)

    @property
    def samples(self):
        """Returns the number of samples of a run for the core's network."""
        return max(1, self.model.network.origin.batch or 1)

    def on_host(self, values):
        """Computes the part by an interpreter. `values` has the inputs by name. Returns `{name: array}`."""
        return self.session({name: values[name] for name in self.part.inputs})

    def given(self, values):
        """Returns the part's inputs as an argument of the methods of its model."""
        return {name: np.asarray(values[name]) for name in self.part.inputs}

    def on_core(self, values, place, core, batch, progress=None):
        """Runs the part on a core, or on a model of the core. Returns `({name: array}, InferenceRun)`. If the core cannot take
        the values, the host computes the part, and the run is the reason, a text."""
        for name in self.part.inputs:
            shape, wanted = np.shape(values[name]), self.kinds[name][1]
            if shape != wanted:
                return self.on_host(values), f"{quoted(name)} has the shape {shape}, not {wanted}"
        try:
            run = self.model.run(self.given(values), place, core=core, batch=batch, progress=progress)
        except DataError as error:
            return self.on_host(values), str(error)
        return {name: self._typed(name, run.outputs[name]) for name in self.part.outputs}, run

    def _typed(self, name, array):
        kind, shape = self.kinds[name]
        return array.reshape(shape).astype(helper.tensor_dtype_to_np_dtype(kind))


def made_parts(graph, parts, *, name, effort, weights):
    """Returns the :class:`RunPart` of each :class:`sim.frontend.division.Part` of a :class:`.StaticGraph`."""
    made = []
    for number, part in enumerate(parts, 1):
        model = nodes_model(graph, part.nodes, part.inputs, part.outputs)
        kinds = {one: graph.kinds.get(one, (0, None)) for one in (*part.inputs, *part.outputs)}
        core = None
        if part.network is not None:
            file = TemporaryFile(model, f"{name}_part{number}")
            network = replace(part.network, name=file.path.stem, origin=replace(part.network.origin, path=file.path))
            core = Model(rounded_network(network, weights), effort, file=file)
        made.append(RunPart(part, model, kinds, core))
    return made
