"""PyTorch modules and Keras models as sources of ONNX models: which value of the file is which weight, and the way back.

While the object is exported, its weights are numbers (:mod:`.numbered_weights`).

A weight of the object is a function of a weight of the file, `factor * weight + offset`. Batch normalizations are scales and
shifts here (:class:`.BatchNorm`), which :func:`.fold_affine` combines with the weights before them.
"""

import warnings
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from ..export.affine_layers import Affine, fold_affine
from ..ir.errors import ModelError
from .dropouts import drops_of, with_masks
from .numbered_weights import MOST_NUMBERS, ends_of, find_numbers, flat_of, numbers_of, parts_of

__all__ = ["Source"]


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
        `export(affine)` returns the object as onnx.ModelProto. `affine` has scale and shift of each of `norms`, `{name: (array,
        array)}`: the layer must then compute `x * scale + shift`. With None, it is exported as it is. `export(affine, True)`
        returns it with its operators Dropout, as in training.
    dropout : float or ModelError
        Dropout rate for training. If it drops other values than :class:`.Dropout`, the error if they cannot be found.
    fixed : collection of str
        Names of weights that the framework does not train, such as masks and frozen layers. They may be missing in the model.
    norms : list of BatchNorm
    refused : ModelError or None
        Why the object cannot be trained, because of its layers.

    Attributes
    ----------
    model : onnx.ModelProto
    missing : tuple of str
        Names of weights that are not in the model one to one. They are combined with others, or not used.
    """

    def __init__(self, title, read, write, export, dropout, fixed=(), norms=(), refused=None):
        self.object = None  # the object, for callbacks of its framework
        self.title, self._own, self._write_own, self._export, self._dropout = title, read, write, export, dropout
        self._norms, self._apart, self._refused, self.model = list(norms), (), refused, None
        self._is_masked = False  # :meth:`masked` made the model that is trained
        self._scales = {}  # {initializer: BatchNorm} of `_apart`, the normalizations by statistics of batches
        self._fixed = {*fixed, *(name for norm in self._norms for name in norm.fixed(fixed))}
        weights = self._read()
        self._places, self._counts = {}, {name: np.zeros(array.size) for name, array in weights.items()}
        self._types = sorted({str(array.dtype) for array in read().values()} - {"float32"})
        if not self._types and sum(array.size for array in weights.values()) <= MOST_NUMBERS:
            self.model = self._numbered(weights, export)
            changed = {name for name in self._fixed if name in weights and (self._counts[name] != 1).any()}
            if changed:
                self.model = self._numbered({name: one for name, one in weights.items() if name not in changed}, export)
        self.missing = tuple(name for name, counts in self._counts.items() if (counts != 1).any())
        if self.missing:
            self._places, self._norms, self.model = {}, [], export(None)
        self._unfolded, self._all_places = self.model, self._places
        self._constants, self._combined, self._factors, self._offsets = {}, set(), {}, {}
        if not self.missing:
            self._fold()

    def _read(self):
        """Returns the weights, with scale and shift in place of each normalization's own."""
        own = self._own()
        normal = {name for norm in self._norms for name in norm.own}
        values = {name: array for name, array in own.items() if name not in normal}
        folded = (norm.folded(own, norm in self._apart) for norm in self._norms)
        return values | {name: array for one in folded for name, array in one.items()}

    def _write(self, values):
        own = self._own()
        for norm in self._norms:
            made = norm.unfolded(values, own, norm in self._apart)
            own |= {name: array for name, array in made.items() if name not in self._fixed}
        self._write_own(own | {name: array for name, array in values.items() if name in own})

    def _numbered(self, weights, export):
        """Exports the object with numbers in place of `weights`, and finds them. Returns the model with the weights in place of
        numbers."""
        every, own = self._read(), self._own()
        numbers = every | numbers_of(every, weights)
        self._write_own(own | {name: array for name, array in numbers.items() if name in own})
        try:
            model = export({norm.name: (numbers[norm.scale], numbers[norm.shift]) for norm in self._norms})
        finally:
            self._write_own(own)
        self._places, counts = find_numbers(model, every)
        self._counts = {name: counts[name] for name in weights}
        return model

    def _fold(self, form=None):
        """Makes the model of the present weights. Scales and shifts of layers become weights that the core trains. `form` is a
        model with other operators. Default: the exported model."""
        weights, self._places, self.model = self._read(), dict(self._all_places), onnx.ModelProto()
        self.model.CopyFrom(self._unfolded if form is None else form)
        flat, names, ends = flat_of(weights).astype(np.float32), [*weights], ends_of(weights)

        def name_of(places):
            return names[np.searchsorted(ends, places.flat[0], "right")]

        for one in self.model.graph.initializer:
            if one.name in self._places:
                one.CopyFrom(numpy_helper.from_array(flat[self._places[one.name]], one.name))
        holders = {name_of(places): name for name, places in self._places.items()}
        layers = [
            Affine(
                holders[norm.scale], holders[norm.shift], norm.axis % self._places[holders[norm.scale]].ndim, norm in self._apart
            )
            for norm in self._norms
        ]
        self._scales = {layer.scale: norm for layer, norm in zip(layers, self._norms) if layer.is_apart}
        folds = fold_affine(self.model, layers, lambda name: name_of(self._places[name]) in self._fixed)
        shapes = {one.name: tuple(one.dims) for one in self.model.graph.initializer}
        self._places = {name: places.reshape(shapes.get(name, places.shape)) for name, places in self._places.items()}
        self._factors = {name: np.ones(places.shape) for name, places in self._places.items()}
        self._offsets = {name: np.zeros(places.shape) for name, places in self._places.items()}
        self._constants, self._combined = {}, set()  # values of the object's weights by place, and names of these weights
        for fold in folds:
            scale, shift = self._places.pop(fold.layer.scale), self._places[fold.layer.shift]
            kept = np.where(flat[scale] == 0, 1, flat[scale]).ravel()
            self._constants |= dict(zip(scale.ravel().tolist(), kept.tolist()))
            self._combined.add(name_of(scale))
            self._factors[fold.weights] = 1 / np.where(fold.factor == 0, 1, fold.factor)
            if fold.bias:
                bias = self._places.pop(fold.bias)
                is_fixed = name_of(shift) in self._fixed  # then the bias is trained
                held, other, factor = (bias, shift, 1 / kept) if is_fixed else (shift, bias, np.ones(kept.shape))
                self._combined.add(name_of(other))
                self._places[fold.layer.shift] = held.reshape(shift.shape)
                self._factors[fold.layer.shift] = factor.reshape(shift.shape)
                less = flat[other].ravel() * (factor if is_fixed else kept)
                self._offsets[fold.layer.shift] = -less.reshape(shift.shape)

    def separate(self, is_training):
        """Makes the model in which the normalizations that training changes are scales by gamma and shifts by beta alone, or,
        after training, the model of inference."""
        self._apart = [norm for norm in self._norms if is_training and not norm.is_frozen]
        self._fold()

    @property
    def has_norms(self):
        """Returns True if the object has normalizations that training changes."""
        return not all(norm.is_frozen for norm in self._norms)

    def with_statistics(self, graph, held, batch):
        """Returns the graph, of :meth:`separate`, whose normalizations have the statistics of `batch` samples. `held` is as in
        :meth:`frozen`. Raises ModelError."""
        own, terms = self._own(), [term for stage in graph.stages for term in stage.terms]
        for initializer, norm in self._scales.items():
            names = [name for name, parts in held.items() if name and any(part[0] == initializer for part in parts)]
            if len(names) != 1 or sum(term.weights == names[0] for term in terms) != 1:
                raise ModelError(
                    f"{self.title}: its normalization {norm.name} is joined with other operators, so that it cannot have the "
                    "statistics of batches; freeze it with requires_grad=False (PyTorch) or trainable=False (Keras)"
                )
            graph = norm.normalized(graph, names[0], batch, own)
        return graph

    @property
    def dropout(self):
        """Returns the dropout rate. Returns None if :meth:`masked` has the tensors that are dropped."""
        return None if isinstance(self._dropout, ModelError) else self._dropout

    def masked(self):
        """Returns the :class:`.MaskedModel` of the present weights. Raises ModelError if the dropped tensors are not known."""
        self.check()
        self._is_masked, weights, plain = True, self._read(), self.model
        try:
            training = self._export({norm.name: (weights[norm.scale], weights[norm.shift]) for norm in self._norms}, True)
        except ModelError:
            raise self._dropout from None
        rates = drops_of(training, self._unfolded)
        if rates is None:
            raise self._dropout
        made = with_masks(self._unfolded, rates, self.title)
        self._fold(made.model)
        made, self.model = replace(made, model=self.model), plain
        return made

    def check(self):
        """Raises ModelError if the object cannot be trained, or if trained weights cannot be stored in it."""
        if self._refused:
            raise self._refused
        if self.missing:
            raise ModelError(self._refusal)

    def frozen(self, held, scales):
        """Returns the names of the parameters that training must not change: they are frozen in the object, or constants beside
        its weights. Raises ModelError if trained weights cannot be stored in the object.

        Parameters
        ----------
        held : dict
            The initializers of each parameter, as :meth:`.ModelWriter.held` returns them.
        scales : dict
            As in :meth:`store`.
        """
        self.check()
        if scales is None:
            raise ModelError(self._refusal)
        weights = self._read()
        self._combined |= {one for name in scales if scales[name] is None for one in self._owners(name)}
        flat, fixed = flat_of(weights), np.concatenate([np.full(one.size, name in self._fixed) for name, one in weights.items()])
        constants = {one.name: numpy_helper.to_array(one).ravel() for one in self.model.graph.initializer}
        kept, (combined, used) = [], np.zeros((2, flat.size), bool)
        for parameter, parts in held.items():
            is_kept, fixed_places = parameter is not None, []
            for name, index, values in parts:
                if name not in self._places:  # a constant beside the weights, which must not hold a part of them
                    if not np.allclose(values, constants[name][index], rtol=2**-7):
                        raise ModelError(self._refusal)
                    continue
                places = self._places[name].ravel()[index]
                is_same = np.isclose(self._weights(name, values, scales[name], index), flat[places], rtol=2**-7, atol=1e-6)
                is_kept &= bool((fixed[places] & is_same).all())
                fixed_places.append(places[fixed[places] & ~is_same if parameter is None else fixed[places]])
                used[places] = True
            if is_kept:
                kept.append(parameter)
            else:
                combined[np.concatenate([np.zeros(0, np.int64), *fixed_places])] = True
        self._check_used(used, combined, weights)
        return kept

    def _owners(self, name):
        """Returns the names of the object's weights that an initializer holds."""
        weights = self._read()
        found = np.zeros(len(flat_of(weights)), bool)
        found[self._places.get(name, [])] = True
        return [name for name, part in zip(weights, parts_of(found, weights)) if part.any()]

    def _check_used(self, used, combined, weights):
        known = {*self._fixed, *self._combined}
        constant = [name for name, part in zip(weights, parts_of(used, weights)) if not part.any() and name not in known]
        combined = [name for name, part in zip(weights, parts_of(combined, weights)) if part.any()]
        if constant:
            raise ModelError(
                f"{self.title}: its weights{_listed(constant)} are constants of the network, which the core does not train, "
                "such as a factor of results; freeze them with requires_grad=False (PyTorch) or trainable=False (Keras)"
            )
        if combined:
            raise ModelError(
                f"{self.title}: its frozen weights{_listed(combined)} are combined with trained ones on the core; train "
                "them, too, with requires_grad=True (PyTorch) or trainable=True (Keras)"
            )

    def _weights(self, name, values, scale, index=slice(None)):
        """Returns the object's weights for values of an initializer, all flat."""
        factor = (self._factors[name] * scale).ravel()[index]
        return values.ravel() * factor + self._offsets[name].ravel()[index]

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
        if self.missing:
            cause = f"its weights{_listed(self.missing)} are not in its export or are combined with others"
            remedy = "train a file instead: write it with `save`, and train `tpu.load` of it"
        elif self._is_masked:
            cause = "a Dropout layer drops values of its input before a convolution, or its operators use parts of its weights"
            remedy = "put this layer after the convolution, or give fit the argument `dropout`"
        else:
            cause = "its operators use parts of its weights, or their sums with constants"
            remedy = (
                "leave out these sums; give recurrent layers activation='tanh' and recurrent_activation='sigmoid', and PReLU of "
                "images shared_axes=[1, 2]"
            )
        return f"{self.title}: trained weights cannot be stored in it: {cause}; {remedy}"

    @contextmanager
    def trying(self):
        """Restores the weights before :meth:`show` if an error ends a `with` block."""
        self._before = None
        try:
            yield
        except BaseException:
            if self._before is not None:
                self._write_own(self._before)
            raise

    def show(self, model, scales, constants):
        """Stores the weights of a model in the midst of training: as :meth:`store`, which follows at the end."""
        self._before = self._own() if self._before is None else self._before
        other = copy(self)
        other._places, other._factors = dict(self._places), dict(self._factors)
        other.store(model, scales, constants)

    def store(self, model, scales, constants):
        """Stores the weights of a trained onnx.ModelProto in the object.

        Parameters
        ----------
        model : onnx.ModelProto
            The model of this object, or one stored before, with other values.
        scales : dict
            Factors from the values to weights for the constant factors of the model before: {initializer: array}. An entry of
            None is a constant factor, which the object keeps.
        constants : dict
            Constants of the trained graph, which has running averages of normalizations.
        """
        weights = self._read()
        flat = flat_of(weights)
        for place, value in self._constants.items():
            flat[place] = value
        for name in (name for name, scale in scales.items() if scale is None):
            self._places.pop(name, None)
        for one in model.graph.initializer:
            if one.name in self._places:
                places, scale = self._places[one.name], scales.get(one.name, 1)
                flat[places] = self._weights(one.name, numpy_helper.to_array(one), scale).reshape(places.shape)
                self._factors[one.name] = self._factors[one.name] * scale
        for name, part in zip(weights, parts_of(flat, weights)):
            if name in self._fixed:
                part[...] = weights[name].ravel()
        parts = parts_of(flat, weights)
        self._write({name: part.reshape(array.shape).astype(array.dtype) for (name, array), part in zip(weights.items(), parts)})
        averages = [norm.averages(constants) for norm in self._scales.values()]
        self._write_own(self._own() | {name: array for one in averages for name, array in one.items()})


def _listed(names):
    return f" {', '.join(names[:3])}{' ...' if names[3:] else ''}" if names else ""
