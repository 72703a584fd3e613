"""PyTorch modules and Keras models as sources of ONNX models: which value of the file is which weight, and the way back.

Exporters rename and transpose weights, and merge equal ones, such as two biases of zeros. So while the object is exported, each
value of its weights is replaced by a number of its own. The numbers found in the file are then replaced by the values.
"""

import warnings
from collections import Counter

import numpy as np
from onnx import helper, numpy_helper

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
    fixed : collection of str
        Names of weights that the framework does not train, such as masks and frozen layers. They may be missing in the model.

    Attributes
    ----------
    model : onnx.ModelProto
    missing : tuple of str
        Names of weights that are not in the model one to one. They are combined with others, or not used.
    """

    def __init__(self, title, read, write, export, dropout, fixed=()):
        self.title, self._read, self._write, self._dropout = title, read, write, dropout
        weights = read()
        self._places, self._counts, self.model = {}, {name: np.zeros(array.size) for name, array in weights.items()}, None
        self._types = sorted({str(array.dtype) for array in weights.values()} - {"float32"})
        if not self._types and sum(array.size for array in weights.values()) <= _MOST:
            self.model = self._numbered(weights, export)
            changed = {name for name in fixed if name in weights and (self._counts[name] != 1).any()}
            if changed:
                self.model = self._numbered({name: one for name, one in weights.items() if name not in changed}, export)
        self.missing = tuple(name for name, counts in self._counts.items() if (counts != 1).any())
        self._repeated = [name for name, counts in self._counts.items() if (counts > 1).any()] if self.missing else self._shared()
        if self.missing:
            self._places, self.model = {}, export()
        self._fixed = fixed
        self._scales = {name: np.ones(places.shape) for name, places in self._places.items()}

    def _numbered(self, weights, export):
        """Exports the object with numbers in place of `weights`, and finds them. Returns the model with the weights in place of
        numbers."""
        every = self._read()
        first = {name: _FIRST + end - every[name].size for name, end in zip(every, _ends(every))}
        numbers = {
            name: np.arange(first[name], first[name] + array.size, dtype=np.float64).reshape(array.shape).astype(array.dtype)
            for name, array in weights.items()
        }
        self._write(every | numbers)
        try:
            model = export()
        finally:
            self._write(every)
        flat, counts = _flat(every).astype(np.float32), np.zeros(sum(array.size for array in every.values()), np.int64)
        self._places = {}
        for one in list(model.graph.initializer):
            array = numpy_helper.to_array(one)
            if array.dtype != np.float32 or not array.size or not ((array >= _FIRST) & (array < _FIRST + counts.size)).all():
                continue
            places = array.astype(np.int64) - _FIRST
            tied = [name for name, other in self._places.items() if places.ndim == 2 and np.array_equal(other, places.T)]
            if tied:  # one weight in both forms, as a table of embeddings that computes logits too
                model.graph.initializer.remove(one)
                model.graph.node.insert(0, helper.make_node("Transpose", tied, [one.name], f"{one.name}_transposed"))
                continue
            self._places[one.name] = places
            np.add.at(counts, places.ravel(), 1)
            one.CopyFrom(numpy_helper.from_array(flat[places], one.name))
        self._counts = {name: part for name, part in zip(every, _parts(counts, every)) if name in weights}
        return model

    def _shared(self):
        """Returns the names of weights that several operators of the model read. Tables of embeddings are not among them."""
        readers = Counter(name for node in self.model.graph.node for name in set(node.input))
        for node in self.model.graph.node:
            if node.op_type == "Gather":
                del readers[node.input[0]]
        found = np.zeros(len(_flat(self._read())), bool)
        for name, places in self._places.items():
            found[places] |= readers[name] > 1
        return [name for name, part in zip(self._read(), _parts(found, self._read())) if part.any()]

    @property
    def dropout(self):
        """Returns the dropout rate. Raises ModelError if the object drops values where the core does not."""
        if isinstance(self._dropout, ModelError):
            raise self._dropout
        return self._dropout

    def check(self, scales=()):
        """Raises ModelError if trained weights cannot be stored in the object. `scales` are those of :meth:`store`."""
        if self.missing or self._repeated or any(scales[name] is not None for name in set(scales) - set(self._places)):
            raise ModelError(self._refusal)
        trained = self._weights_in(scales)
        fixed = [name for name in trained if name in self._fixed]
        constant = [name for name in self._read() if name not in trained and name not in self._fixed] if scales else []
        if constant:
            raise ModelError(
                f"{self.title}: its weights{_listed(constant)} are constants of the network, which the core does not train, "
                "such as the slope of PReLU; freeze them with requires_grad=False (PyTorch) or trainable=False (Keras)"
            )
        if fixed:
            raise ModelError(
                f"{self.title}: its weights{_listed(fixed)} are frozen or buffers, and the core trains all weights; make them "
                "parameters with requires_grad=True (PyTorch) or trainable=True (Keras)"
            )

    def _weights_in(self, names):
        weights = self._read()
        used = np.zeros(sum(array.size for array in weights.values()), bool)
        for name in set(names) & set(self._places):
            used[self._places[name]] = True
        return [name for name, part in zip(weights, _parts(used, weights)) if part.any()]

    def warn(self, remedy):
        """Warns if trained weights cannot be stored in the object. `remedy` says how to avoid the warning."""
        if self.missing:
            warnings.warn(f"{self._refusal}; predict and evaluate work; {remedy}", UserWarning, stacklevel=3)

    @property
    def _refusal(self):
        if self._types:
            return (
                f"{self.title}: trained weights cannot be stored in it: its weights are {', '.join(self._types)}; convert it to "
                "float32 first, as by module.float() in PyTorch"
            )
        if self._repeated:
            return (
                f"{self.title}: trained weights cannot be stored in it: several of its operators share{_listed(self._repeated)}, "
                "and the core trains weights for each; give each a layer of its own"
            )
        names = _listed(self.missing)
        return (
            f"{self.title}: trained weights cannot be stored in it: its weights{names} are not the core's one to one, as "
            "with BatchNormalization, ConvTranspose, or a constant that is added to results of a layer; train a file instead: "
            "write it with `save`, and train `tpu.load` of it"
        )

    def store(self, model, scales):
        """Stores the weights of a trained onnx.ModelProto in the object.

        Parameters
        ----------
        model : onnx.ModelProto
            The model of this object, or one stored before, with other values.
        scales : dict
            Factors from the values to weights for the constant factors of the model before: {initializer: array}. An entry of
            None is a constant factor, which the object keeps.
        """
        weights = self._read()
        flat = _flat(weights)
        for name in (name for name, scale in scales.items() if scale is None):
            self._places.pop(name, None)
        for one in model.graph.initializer:
            if one.name in self._places:
                self._scales[one.name] *= scales.get(one.name, 1)
                flat[self._places[one.name]] = numpy_helper.to_array(one) * self._scales[one.name]
        parts = _parts(flat, weights)
        self._write({name: part.reshape(array.shape).astype(array.dtype) for (name, array), part in zip(weights.items(), parts)})


def _flat(weights):
    """Returns the values of all weights in one array. It is empty if there are none."""
    return np.concatenate([np.zeros(0, np.float16), *(array.ravel() for array in weights.values())])


def _ends(weights):
    return np.cumsum([array.size for array in weights.values()], dtype=np.int64)


def _parts(flat, weights):
    return np.split(flat, _ends(weights)[:-1])


def _listed(names):
    return f" {', '.join(names[:3])}{' ...' if names[3:] else ''}" if names else ""


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
