"""The recurrent layers GRU, LSTM and RNN of ONNX. The layers are unrolled: the stages of one step are repeated for each element
of the sequence.

X is (steps, batch, inputs). The state is one vector per sample. A constant state, for example the initial state, is a numpy
array. Values computed from constant states are numpy arrays too.
"""

from dataclasses import dataclass, replace

import numpy as np

from ...data.printable import printable
from ...functions.functions import Function
from ...fusion.nodes import Linear, SumRegion
from ...ir.errors import ModelError
from ..index.values import SymbolicTensor, limited, show
from ..index.views import arrangement, everything, seen_through, select
from ..registry import LINEAR, operator
from .activations import apply_function
from .concatenation import concat
from .dense import multiplied
from .elementwise import added, affine, as_values, product

__all__ = []

_MOST_STEPS = 1024
_ACTIVATIONS = {"GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh"), "RNN": ("tanh",)}
_GATES = {"GRU": "zrh", "LSTM": "iofc", "RNN": "h"}
_OF_RNN = ("tanh", "relu", "sigmoid")
_DIRECTIONS = {b"forward": (1,), b"reverse": (-1,), b"bidirectional": (1, -1)}


# Sums and products of tensors and constants


def _plus(step, one, two):
    if isinstance(one, np.ndarray):
        one, two = two, one
    if isinstance(one, np.ndarray):
        return one + two
    return affine(step, one, shift=two) if isinstance(two, np.ndarray) else added(step, one, two)


def _times(step, one, two):
    if isinstance(one, np.ndarray):
        one, two = two, one
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray) and not two.any():
        return one * two if isinstance(one, np.ndarray) else np.zeros_like(two)
    return affine(step, one, scale=two) if isinstance(two, np.ndarray) else product(step, one, two)


def _minus(step, one, two):
    return _plus(step, one, _times(step, two, np.array(-1.0)))


def _dense(step, values, weights):
    return values @ weights if isinstance(values, np.ndarray) else multiplied(step, values, weights)


@dataclass(frozen=True, eq=False)
class _Layer:
    """One direction of a recurrent layer."""

    step: object
    #: inputs, recurrent: Dict of str to float64 (inputs, hidden), (hidden, hidden). Weights of the input and of the state, by
    #: gate.
    inputs: dict
    recurrent: dict
    #: before, after: Dict of str to float64 (hidden,). Biases of the products with the input and with the state, by gate.
    before: dict
    after: dict
    #: Dict of str to float64 (hidden,). Weights of the cell in the gates i, o and f of an LSTM. Empty without peepholes.
    peepholes: dict
    function: str  # activation function of an RNN

    def _of_input(self, gate, x):
        return self._shifted(multiplied(self.step, x, self.inputs[gate]), self.before[gate])

    def _of_state(self, gate, state):
        return self._shifted(_dense(self.step, state, self.recurrent[gate]), self.after[gate])

    def _shifted(self, sums, bias):
        """Returns a sum with a bias. Without biases, zeros of a constant state are no bias that training finds."""
        is_nothing = self.step.argument(3) is None and isinstance(bias, np.ndarray) and not bias.any()
        return sums if is_nothing else _plus(self.step, sums, bias)

    def _gate(self, gate, x, state, function="sigmoid", cell=None):
        sums = self._shifted(self._of_input(gate, x), self._of_state(gate, state))
        if cell is not None and self.peepholes:
            sums = _plus(self.step, sums, _times(self.step, cell, self.peepholes[gate]))
        return apply_function(self.step, sums, Function(function))

    def gru(self, x, state):
        """Returns the next state of a GRU, as a tuple of one tensor. `x` is the input of this step, `state` the previous
        state."""
        step, (hidden,) = self.step, state
        z, r = self._gate("z", x, hidden), self._gate("r", x, hidden)
        if step.attributes.get("linear_before_reset", 0):
            recurrent = self._of_state("h", hidden)
            if isinstance(recurrent, np.ndarray) and step.argument(3) is not None:
                recurrent = as_values(step, recurrent, r)
            recurrent = _times(step, r, recurrent)
        else:
            recurrent = self._of_state("h", _times(step, r, hidden))
        new = apply_function(step, self._shifted(self._of_input("h", x), recurrent), Function("tanh"))
        return (_plus(step, new, _times(step, z, _minus(step, hidden, new))),)

    def lstm(self, x, state):
        step, (hidden, cell) = self.step, state
        i = self._gate("i", x, hidden, cell=cell)
        o = None if self.peepholes else self._gate("o", x, hidden)
        f = self._gate("f", x, hidden, cell=cell)
        new = self._gate("c", x, hidden, "tanh")
        cell = _plus(step, _times(step, i, new), _times(step, f, cell))
        o = o or self._gate("o", x, hidden, cell=cell)
        return _times(step, o, apply_function(step, cell, Function("tanh"))), cell

    def rnn(self, x, state):
        return (self._gate("h", x, *state, self.function),)


_OF_BOTH = ("activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "layout")


@operator("GRU", group=LINEAR, on_constants=False, joins=True, attributes=(*_OF_BOTH, "linear_before_reset"))
@operator("LSTM", group=LINEAR, on_constants=False, joins=True, attributes=(*_OF_BOTH, "input_forget"))
@operator("RNN", group=LINEAR, on_constants=False, joins=True, attributes=_OF_BOTH)
def recurrent(step, tensor):
    """Handles recurrent layers. Returns `[Y, Y_h]`, and `[Y, Y_h, Y_c]` for an LSTM."""
    if not step.attributes.get("layout", 0):
        return _unrolled(step)
    arguments = [_swapped(value) if place in (0, 5, 6) else value for place, value in enumerate(step.arguments)]
    attributes = {name: value for name, value in step.attributes.items() if name != "layout"}
    sequence, *states = _unrolled(replace(step, arguments=arguments, attributes=attributes))
    order = sequence.sample.transpose(2, 0, 1, 3)
    return [sequence.permuted(order, None if sequence.batch is None else 0), *map(_swapped, states)]


def _swapped(value):
    """Exchanges the first two axes."""
    if not isinstance(value, SymbolicTensor):
        return value if value is None or value.ndim < 2 else value.swapaxes(0, 1)
    if len(value.dims) < 2:
        return value
    return value.permuted(value.sample.swapaxes(0, 1), {0: 1, 1: 0}.get(value.batch, value.batch))


def _unrolled(step):
    x, weights, again = (step.argument(place) for place in range(3))
    directions = _check(step, x, weights, again)
    states = 2 if step.operator == "LSTM" else 1
    hidden = weights.shape[1] // len(_GATES[step.operator])
    x = arrangement(step, x, last=2)[0]
    steps = [seen_through(x.permuted(one, None if x.batch is None else 0)) for one in x.sample]
    made, ends = [], []
    for number, way in enumerate(directions):
        layer = _layer(step, number, hidden)
        state = tuple(_state(step, 5 + place, number, x, hidden, len(directions)) for place in range(states))
        results = []
        for one in steps[::way]:
            state = getattr(layer, step.operator.lower())(one, state)
            results.append(state[0])
        made.append(results[::way])
        ends.append(state)
    batch = None if x.batch is None else 2
    sequence = _sequence(step, made, x.dims[1], hidden, batch)
    return [sequence, *(_stacked(step, [end[place] for end in ends]) for place in range(states))]


def _refuse(step, why):
    raise ModelError(f"{step.title}: {why}")


def _check(step, x, weights, again):
    """Raises an error if the layer is not supported. Returns the directions as a tuple: 1 is forward, -1 is reverse. `weights`
    are the weights W of the input, `again` the weights R of the state."""
    attributes = step.attributes
    for name in ("clip", "input_forget", "activation_alpha", "activation_beta"):
        if attributes.get(name):
            _refuse(step, f"its {name} of {printable(attributes[name], 40)} is not supported; leave it out")
    direction = attributes.get("direction", b"forward")
    directions = _DIRECTIONS.get(direction)
    if directions is None:
        _refuse(step, f"its direction {printable(direction, 40)} is not forward, reverse or bidirectional")
    usual = _ACTIVATIONS[step.operator] * len(directions)
    given, is_rnn = _activations(step), step.operator == "RNN"
    if not (len(given) == len(usual) and {*given} <= {*_OF_RNN} if is_rnn and given else given in ((), usual)):
        known = " or ".join(_OF_RNN) if is_rnn else ", ".join(usual)
        _refuse(step, f"its activations {printable(', '.join(given), 80)} are not supported, only {known}")
    if not isinstance(x, SymbolicTensor) or any(
        isinstance(value, SymbolicTensor) for value in (weights, again, step.argument(3), step.argument(7))
    ):
        _refuse(step, "its weights must be constant, and its input X a tensor")
    if x.batch not in (1, None) or x.batch == 1 and x.dims[1] != 1:
        _refuse(step, f"its input of {show(x)} must have the batch as its second axis: X (steps, batch, inputs)")
    if len(x.dims[:1]) and x.dims[0] > _MOST_STEPS:
        _refuse(step, f"its sequence of {x.dims[0]} steps is longer than {_MOST_STEPS}, the limit of unrolling")
    _check_shapes(step, x, weights, again, len(directions))
    lengths = step.argument(4)
    if lengths is not None and (isinstance(lengths, SymbolicTensor) or (lengths != x.dims[0]).any()):
        _refuse(step, f"its sequence_lens must be constant, and {x.dims[0]} everywhere, the length of X")
    return directions


def _activations(step):
    return tuple(one.decode("utf-8", "replace").lower() for one in step.attributes.get("activations", ()))


def _check_shapes(step, x, weights, again, directions):
    gates = len(_GATES[step.operator])
    rows = weights.shape[1] if weights.ndim == 3 else 0
    hidden, bias, peepholes = rows // gates, step.argument(3), step.argument(7)
    fits = (
        len(x.dims) == 3
        and rows
        and weights.shape == (directions, gates * hidden, x.dims[2])
        and again.shape == (directions, gates * hidden, hidden)
        and step.attributes.get("hidden_size", hidden) == hidden
        and (bias is None or bias.shape == (directions, 2 * gates * hidden))
        and (peepholes is None or peepholes.shape == (directions, 3 * hidden))
    )
    if not fits:
        shapes = ", ".join(show(one.shape) for one in (weights, again, bias, peepholes) if one is not None)
        _refuse(step, f"X of {show(x)}, weights and bias of {shapes}, and its hidden_size do not fit")


def _layer(step, number, hidden):
    """Returns the :class:`_Layer` of direction number `number`. `hidden` is the size of the state."""
    gates, bias, peepholes = _GATES[step.operator], step.argument(3), step.argument(7)

    def cut(array, first=0, gates=gates):
        return {
            gate: array[(first + place) * hidden : (first + place + 1) * hidden].T.astype(np.float64)
            for place, gate in enumerate(gates)
        }

    bias = np.zeros(2 * len(gates) * hidden) if bias is None else bias[number]
    before, after = cut(bias), cut(bias, len(gates))
    peepholes = {} if peepholes is None else cut(peepholes[number], gates="iof")
    function = (_activations(step) or ("tanh",) * (number + 1))[number]
    return _Layer(step, cut(step.arguments[1][number]), cut(step.arguments[2][number]), before, after, peepholes, function)


def _state(step, place, number, x, hidden, directions):
    """Returns the initial state of direction number `number`: a tensor (batch, hidden), or an array (1, hidden). `place` is the
    index of the node's input that gives the initial state."""
    given, name = step.argument(place), ("initial_h", "initial_c")[place - 5]
    if given is None:
        return np.zeros((1, hidden))
    if isinstance(given, SymbolicTensor):
        if given.dims != (directions, x.dims[1], hidden) or given.batch != x.batch:
            _refuse(step, f"its {name} of {show(given)} is not ({directions}, batch, {hidden})")
        part = given.permuted(given.sample[number], None if given.batch is None else 0)
        return everything(step, part)
    samples = 1 if x.batch is None else x.samples
    sizes = (1,) if samples is None else (1, x.dims[1] * samples)
    if given.ndim != 3 or (given.shape[0], given.shape[2]) != (directions, hidden) or given.shape[1] not in sizes:
        _refuse(step, f"its {name} of {show(given.shape)} is not ({directions}, batch, {hidden})")
    if (given[number] != given[number, :1]).any():
        _refuse(step, f"its {name} is constant and differs from sample to sample; make it an input")
    return given[number, :1].astype(np.float64)


def _stacked(step, states):
    """Returns the states of all directions as one tensor (directions, batch, hidden)."""
    raised = [one.permuted(one.sample[None], None if one.batch is None else 1) for one in states]
    if len(raised) == 1:
        return raised[0]
    return concat(replace(step, arguments=raised, attributes={"axis": 0}), raised[0])


def _sequence(step, made, batch_size, hidden, batch):
    """Returns the results of all directions and steps as one tensor (steps, directions, batch, hidden). If each step has one
    vector, the steps become positions of a node, and the directions become adjacent channels."""
    count, ways = len(made[0]), len(made)
    limited(step, count, ways, batch_size, hidden)
    if batch_size > 1:
        moved = [
            concat(replace(step, arguments=row, attributes={"axis": 1}), row[0]) if ways > 1 else row[0]
            for row in ([one.permuted(one.sample[None, None], batch) for one in several] for several in zip(*made))
        ]
        return concat(replace(step, arguments=moved, attributes={"axis": 0}), moved[0]) if count > 1 else moved[0]
    if count == ways == 1:
        (one,) = made[0]
        return one.permuted(one.sample[None, None], batch)
    parts = []
    for place in range(count):
        taps = []
        for way, results in enumerate(made):
            one = everything(step, results[place])
            chosen = np.full(ways * hidden, -1)
            chosen[way * hidden : (way + 1) * hidden] = one.index
            taps.append(select(one.source, chosen))
        parts.append(SumRegion(tuple(taps), (1, 1), (place, 0)))
    node = Linear(**step.titles, shape=(count, 1, ways * hidden), parts=tuple(parts))
    index = np.arange(count * ways * hidden).reshape(count, ways, 1, hidden)
    return made[0][0].of(node, index).permuted(index, batch)
