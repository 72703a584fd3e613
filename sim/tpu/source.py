"""PyTorch modules and Keras models as sources of ONNX models: which value of the file is which weight, and the way back.

Exporters rename and transpose weights, and merge equal ones, such as two biases of zeros. So while the object is exported, each
value of its weights is replaced by a number of its own. The numbers found in the file are then replaced by the values.
"""

import warnings
from collections import Counter

import numpy as np
from onnx import numpy_helper

from ..ir.errors import ModelError

__all__ = ["Source", "dropout_rate"]

_FIRST, _MOST = 1 << 23, 1 << 23  # integers from 2^23 to 2^24 are exact in binary32, and rare as constants


class Source:
    """An object of a framework whose weights are in an ONNX model.

    Parameters
    ----------
    title : str
        Name of the object for messages.
    read : callable
        Returns its weights, `{name: float array}`.
    write : callable
        Replaces weights by those in a dict of the same form.
    export : callable
        Returns the object as onnx.ModelProto.
    dropout : float or ModelError
        Dropout rate for training, or the error that explains why there is none.

    Attributes
    ----------
    model : onnx.ModelProto
    missing : tuple of str
        Names of weights that are not in the model one to one. They are combined with others, or not used.
    """

    def __init__(self, title, read, write, export, dropout):
        self.title, self._read, self._write, self._dropout = title, read, write, dropout
        weights = read()
        self._places, self.missing, self.model = {}, tuple(weights), None
        if sum(array.size for array in weights.values()) <= _MOST:
            self.model = self._numbered(weights, export)
        if self.missing:
            self._places, self.model = {}, export()

    def _numbered(self, weights, export):
        """Exports the object with numbered weights, and finds them. Returns the model with the weights in place of numbers."""
        numbers, first = {}, _FIRST
        for name, array in weights.items():
            numbers[name] = np.arange(first, first + array.size, dtype=np.float64).reshape(array.shape).astype(array.dtype)
            first += array.size
        self._write(numbers)
        try:
            model = export()
        finally:
            self._write(weights)
        found = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        for name, array in found.items():
            if array.dtype == np.float32 and array.size and ((array >= _FIRST) & (array < first)).all():
                self._places[name] = array.astype(np.int64) - _FIRST
        counts = np.zeros(first - _FIRST, np.int64)
        for places in self._places.values():
            np.add.at(counts, places.ravel(), 1)
        parts = np.split(counts, np.cumsum([array.size for array in weights.values()])[:-1])
        self.missing = tuple(name for name, part in zip(weights, parts) if (part != 1).any())
        flat = _flat(weights).astype(np.float32)
        for one in model.graph.initializer:
            if one.name in self._places:
                one.CopyFrom(numpy_helper.from_array(flat[self._places[one.name]], one.name))
        return model

    @property
    def dropout(self):
        """Returns the dropout rate. Raises ModelError if the object drops values where the core does not."""
        if isinstance(self._dropout, ModelError):
            raise self._dropout
        return self._dropout

    def check(self, own_form=True):
        """Raises ModelError if trained weights cannot be stored in the object. `own_form` is False if values of the model are not
        the core's weights one to one."""
        if self.missing or not own_form:
            raise ModelError(self._refusal)

    def warn(self, remedy):
        """Warns if trained weights cannot be stored in the object. `remedy` says how to avoid the warning."""
        if self.missing:
            warnings.warn(f"{self._refusal}; predict and evaluate work; {remedy}", UserWarning, stacklevel=3)

    @property
    def _shared(self):
        """Returns the names of weights that several operators of the model read."""
        readers = Counter(name for node in self.model.graph.node for name in set(node.input))
        places = [found.ravel() for name, found in self._places.items() if readers[name] > 1]
        ends = np.cumsum([array.size for array in self._read().values()])
        numbers = np.unique(np.searchsorted(ends, np.concatenate([np.zeros(0, np.int64), *places]), "right"))
        return [name for number, name in enumerate(self._read()) if number in numbers]

    @property
    def _refusal(self):
        shared = [] if self.missing else self._shared
        if shared:
            return (
                f"{self.title}: trained weights cannot be stored in it: several of its operators share {', '.join(shared[:3])}"
                f"{' ...' if shared[3:] else ''}, and the core trains weights for each; give each a layer of its own"
            )
        names = f" {', '.join(self.missing[:3])}{' ...' if self.missing[3:] else ''}" if self.missing else ""
        return (
            f"{self.title}: trained weights cannot be stored in it: its weights{names} are not the core's one to one, as "
            "with BatchNormalization, or attention heads whose width is no power of 4; remove or fuse such layers, or train "
            "a file: save the model, and load it"
        )

    def store(self, model):
        """Stores the weights of a trained onnx.ModelProto in the object."""
        weights = self._read()
        flat = _flat(weights)
        for one in model.graph.initializer:
            if one.name in self._places:
                flat[self._places[one.name]] = numpy_helper.to_array(one)
        parts = np.split(flat, np.cumsum([array.size for array in weights.values()])[:-1])
        self._write({name: part.reshape(array.shape).astype(array.dtype) for (name, array), part in zip(weights.items(), parts)})


def _flat(weights):
    """Returns the values of all weights in one array. It is empty if there are none."""
    return np.concatenate([np.zeros(0, np.float16), *(array.ravel() for array in weights.values())])


def dropout_rate(title, layers):
    """Returns the dropout rate of a network, 0 without Dropout. If the network drops other values than
    :class:`sim.golden.dropout.Dropout`, returns a ModelError.

    Parameters
    ----------
    title : str
        Name of the object for messages.
    layers : list of str or float
        Layers in order: "dense" or "other" for a layer with weights, and the rate of a Dropout layer.
    """
    after, rates, weighted = [], {one for one in layers if not isinstance(one, str)} - {0}, 0
    for one in layers:
        if isinstance(one, str):
            weighted += 1
        elif one:
            after.append(weighted - 1)
    kinds = [one for one in layers if isinstance(one, str)]
    dense = [number for number, kind in enumerate(kinds[:-1]) if kind == "dense"]
    if not rates:
        return 0.0
    if len(rates) > 1 or after != (dense or [len(kinds) - 2]):
        found = ", ".join(f"{rate:g}" for rate in sorted(rates))
        return ModelError(
            f"{title}: the core drops results of each hidden dense layer, or else the inputs of the last layer, with one rate; "
            f"its Dropout layers, of rate {found}, drop others; give fit the argument `dropout`"
        )
    return float(rates.pop())
