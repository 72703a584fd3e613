"""Search for the initializers of an ONNX file that contain the network's parameters.

The indices of all values in the initializers are written as numbers of several digits. The file is read once per digit, with
each weight replaced by that digit of its index. The weights of the resulting network are then the digits of each parameter's
source index. This method needs no rules about operators, layouts or orders. Scales and shifts of normalizations become 1 and 0,
because they are folded into the weights after them, unless the file is in the form for training. A constant factor of a
parameter, such as the factor of attention, is found by a file of numbers near 1. If it is no power of two, and the file has it
as a number, a power of two takes its place. If a bias is added to another bias or constant, one of the two becomes zeros, and
the other has the sum (:mod:`sim.export.added_biases`). If a weight combines several values in another way, as in a folded
BatchNormalization, the result is not a valid digit, and the search fails.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from ..autodiff.embeddings import with_embeddings
from ..frontend.inputs import is_in_training_form
from ..frontend.reader import read_model
from ..ir.errors import ModelError
from .added_biases import added_biases
from .recurrent_biases import split_recurrent_biases
from .scales import FLOATS, parameter_values, with_powers

__all__ = ["FileWeights", "find_weights"]

_BASE = 128  # base of the digits, which are written as 1 to 128: exact in every number type, also in bfloat16
_MIXER = 10_368_889  # odd, and far from a power of two
_ABOVE_ONE = 1 + 2.0**-7  # the next number in bfloat16
_SET_BY_INPUTS = ("Clip", "Dropout", "Pad", "Resize", "Upsample")
_NORMS = ("LayerNormalization", "RMSNormalization")


@dataclass(frozen=True, eq=False)
class FileWeights:
    """An ONNX file whose initializers contain each value of the parameters exactly once, except for copies in :attr:`ties`."""

    model: onnx.ModelProto
    names: tuple[str, ...]  # names of the initializers that contain parameters
    #: Tuple of int array. For each parameter, an array of its shape. It has the index of each value in the concatenation of all
    #: flattened initializers.
    places: tuple[np.ndarray, ...]
    factors: tuple[np.ndarray, ...]  # Tuple of array. For each parameter, its values divided by the values in the file.
    #: Factors from values in this file to values for the constant factors of the original file: {initializer: array}, of each
    #: initializer that has parameters, or has zeros or ones in place of parameters. The entry of a replaced constant factor is
    #: None. `scales` is None if a factor is not known.
    scales: dict | None
    #: For each parameter, the factor from the values in the original file to its values, without signs. It is 1 if they have
    #: different factors.
    sizes: tuple[float, ...]

    @property
    def ties(self):
        """Returns {number of a parameter: bool (channels, channels)} of vectors that have values of the file several times. An
        entry is True for channels with the same value."""
        found = {number: places.ravel() for number, places in enumerate(self.places)}
        return {number: one[:, None] == one for number, one in found.items() if len(np.unique(one)) < len(one)}

    def filled(self, values):
        """Returns the ONNX model with new values of the parameters, one array per parameter."""
        arrays = _arrays(self.model, self.names)
        flat = np.concatenate([array.ravel().astype(np.float64) for array in arrays.values()])
        for places, factors, array in zip(self.places, self.factors, values):
            flat[places] = array.astype(np.float64) / factors
        return _with(self.model, arrays, flat)

    def held(self, values):
        """Yields a list of `(initializer, indices, values)` for each parameter, with the values of the file for `values`."""
        arrays = _arrays(self.model, self.names)
        ends = np.cumsum([0, *(array.size for array in arrays.values())])
        for places, factors, array in zip(self.places, self.factors, values):
            flat, stored = places.ravel(), (array.astype(np.float64) / factors).ravel()
            of = np.searchsorted(ends, flat, "right") - 1
            yield [(name, flat[of == one] - ends[one], stored[of == one]) for one, name in enumerate(arrays) if (of == one).any()]

    def emptied(self):
        """Returns a list of `(initializer, indices, values)` of the initializers that have zeros or ones in place of values."""
        arrays = _arrays(self.model, [name for name, scale in self.scales.items() if scale is not None and np.ndim(scale) == 0])
        return [(name, np.arange(array.size), array.ravel()) for name, array in arrays.items()]


def _arrays(model, names):
    """Returns the named initializers as {name: array}, in the order of the file."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.name in names}


def _with(model, arrays, flat):
    """Returns a copy of a model with new values in the initializers `arrays`. `flat` has the values of all these initializers,
    flattened and concatenated."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    ends = np.cumsum([array.size for array in arrays.values()])
    new = {
        name: part.reshape(array.shape).astype(array.dtype)
        for (name, array), part in zip(arrays.items(), np.split(flat, ends[:-1]))
    }
    for tensor in changed.graph.initializer:
        if tensor.name in new:
            tensor.CopyFrom(numpy_helper.from_array(new[tensor.name], tensor.name))
    return changed


def find_weights(path, parameters, shapes=None):
    """Finds the initializers that contain the parameters. Returns :class:`FileWeights`. Returns None if values of initializers
    and parameters do not correspond one to one.

    Parameters
    ----------
    path : path
        ONNX file that :func:`sim.frontend.load.load_network` can read.
    parameters : dict of str to sim.ir.graph.Parameter
        Parameters of the file's network.
    shapes : dict or None
        Shapes that the user gave to inputs; see :func:`sim.frontend.load.load_network`.
    """
    model = onnx.load(path)
    model = model if is_in_training_form(model) else _without_scales(model)
    split_recurrent_biases(model)
    found = _find(model, (), path, parameters, shapes) or _find(model, (), path, parameters, shapes, copies=True)
    added = added_biases(model) if found is None else ()
    if added:
        added = [one for one in added if one not in _alone(model, added, path, parameters, shapes)]
        found = _find(_filled(model, added, 0), added, path, parameters, shapes)
    return found if found and _are_all(found, path, parameters, shapes) else None


def _filled(model, names, value):
    """Returns a copy of a model with one number in the named initializers."""
    arrays = _arrays(model, names)
    return _with(model, arrays, np.full(sum(array.size for array in arrays.values()), value)) if arrays else model


def _alone(model, added, path, parameters, shapes):
    """Returns the initializers in `added` without which a parameter would be zero."""

    def empty(ones):
        graph = _graph(path, _filled(_filled(ordinary, added, 0), ones, 1), shapes)
        values = parameter_values(graph, parameters) if graph else []
        return {name for name, array in zip(parameters, values) if array is not None and not array.any()}

    ordinary = _filled(model, [one.name for one in model.graph.initializer if one.data_type in FLOATS and one.dims], 1)
    none = empty([])
    return {one for one in added if none and none - empty([one])}


def _are_all(weights, path, parameters, shapes):
    """Returns True if no other constant of the network depends on the weights, and all others are those of the file."""
    rng = np.random.default_rng(1)
    values = [[rng.normal(size=one.initial.shape) for one in parameters.values()] for _ in range(2)]
    graphs = [_graph(path, one, shapes) for one in (onnx.load(path), *map(weights.filled, values))]
    if None in graphs:
        return False
    given, one, other = (graph.constants for graph in graphs)
    known = [one[name] for name in parameters]
    known += [array.swapaxes(1, 2) for array in known]  # one weight in both forms
    changed = [name for name, array in one.items() if not _are_equal(array, other.get(name))]
    if not all(any(np.array_equal(one[name], values) for values in known) for name in changed):
        return False
    return given.keys() == one.keys() and all(
        _are_equal(array, given[name]) for name, array in one.items() if name not in changed
    )


def _are_equal(one, other):
    return other is not None and np.array_equal(one, other, equal_nan=True)


def _find(model, zeros, path, parameters, shapes, copies=False):
    """Returns the :class:`FileWeights` of a model, or None. Initializers `zeros` contain no parameter. With `copies`, vectors may
    have values several times."""
    counts = Counter(one.initial.size for one in parameters.values())
    sizes = {size * share for size, count in counts.items() for share in range(1, count + 1)}  # heads share one initializer
    vectors = {one.initial.size for one in parameters.values() if one.initial.size == one.initial.shape[2]} if copies else ()
    sizes |= {size // count for size in vectors for count in range(1, size + 1) if size % count == 0}
    names = tuple(
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type in FLOATS and int(np.prod(tensor.dims)) in sizes and int(np.prod(tensor.dims)) > 0
        if tensor.name not in (*_scales(model), *_settings(model), *zeros)
    )
    arrays = _arrays(model, names)
    total = sum(array.size for array in arrays.values())
    if total < sum(one.initial.size for one in parameters.values()) and not copies:
        return None
    ones = np.random.default_rng(1).choice((1, _ABOVE_ONE), total)  # equal numbers might be read as another operation
    factors = _powers(_read(path, parameters, model, arrays, ones, shapes))
    ratios, constants = np.ones(len(parameters)), ()
    if factors is None:
        model, ratios, constants = with_powers(model, lambda one: _graph(path, _with(one, arrays, ones), shapes), parameters)
        factors = _powers(_read(path, parameters, model, arrays, ones, shapes))
    if factors is None:
        return None
    numbers, unit, space = [np.zeros(one.initial.shape, np.int64) for one in parameters.values()], 1, _BASE
    while space < total:
        space *= _BASE
    mixed = np.arange(total) * _MIXER % space  # equal digits side by side might be read as another operation
    while unit < space:
        tags = 1 + mixed // unit % _BASE
        found = _read(path, parameters, model, arrays, tags.astype(np.float64), shapes)
        if found is None:
            return None
        for place, digits, factor in zip(numbers, found, factors):
            digits = digits / factor
            if not _are_digits(digits):
                return None
            place += unit * (digits.astype(np.int64) - 1)
        unit *= _BASE
    numbers = [place * pow(_MIXER, -1, space) % space for place in numbers]
    once = [np.unique(place) if place.size == place.shape[2] and copies else place.ravel() for place in numbers]
    every = np.concatenate(once)
    if len(np.unique(every)) < len(every) or every.max() >= total:
        return None
    scales = None if np.isnan(ratios).any() else _all_scales(arrays, numbers, ratios, (*zeros, *_scales(model)), constants)
    sizes = (np.abs(factor) / (1 if np.isnan(ratio) else ratio) for factor, ratio in zip(factors, ratios))
    sizes = tuple(float(size.flat[0]) if (size == size.flat[0]).all() else 1.0 for size in sizes)
    return FileWeights(model, names, tuple(numbers), tuple(factors), scales, sizes)


def _all_scales(arrays, places, ratios, fixed, constants):
    """Returns :attr:`FileWeights.scales`. `fixed` are initializers with zeros or ones, and `constants` replaced factors."""
    flat, used = np.ones((2, sum(array.size for array in arrays.values())))
    for place, ratio in zip(places, ratios):
        flat[place], used[place] = ratio, 0
    ends = np.cumsum([array.size for array in arrays.values()])[:-1]
    parts = zip(arrays.items(), np.split(flat, ends), np.split(used, ends))
    scales = {name: part.reshape(array.shape) for (name, array), part, unused in parts if not unused.all()}
    return scales | dict.fromkeys(fixed, np.float64(1)) | dict.fromkeys(constants)


def _powers(found):
    """Returns the factors of parameters, powers of two with signs, from parameters of a file of numbers near 1."""
    if found is None or any((one == 0).any() for one in found):
        return None
    factors = [np.sign(one) * 2.0 ** np.floor(np.log2(np.abs(one))) for one in found]
    are_powers = all(np.isin(one / factor, (1, _ABOVE_ONE)).all() for one, factor in zip(found, factors))
    return factors if are_powers else None


def _graph(path, model, shapes):
    try:
        return with_embeddings(read_model(model, path, shapes=shapes))
    except ModelError:
        return None


def _read(path, parameters, model, arrays, flat, shapes):
    """Returns the parameters, float64, of the file with new values of its initializers."""
    graph, values = _graph(path, _with(model, arrays, flat), shapes), []
    if graph is None:
        return None
    for one, array in zip(parameters.values(), parameter_values(graph, parameters)):
        if array is not None and array.shape == (1, 1, one.initial.shape[2]):  # equal bias rows
            array = np.broadcast_to(array, one.initial.shape)
        if array is None or array.shape != one.initial.shape:
            return None
        values.append(array.astype(np.float64))
    return values


def _scales(model):
    """Returns the initializers that are scales or shifts of normalizations, {name: 1 or 0}."""
    nodes = [] if is_in_training_form(model) else [node for node in model.graph.node if node.op_type in _NORMS]
    return {name: 1.0 - place for node in nodes for place, name in enumerate(node.input[1:3])}


def _settings(model):
    """Returns the initializers that are no values of a tensor, such as the scales of a Resize."""
    return {name for node in model.graph.node if node.op_type in _SET_BY_INPUTS for name in node.input[1:]}


def _without_scales(model):
    arrays = _arrays(model, _scales(model))
    values = [np.full(array.size, _scales(model)[name]) for name, array in arrays.items()]
    return _with(model, arrays, np.concatenate(values)) if arrays else model


def _are_digits(values):
    return ((values >= 1) & (values <= _BASE) & (values == np.rint(values))).all()
