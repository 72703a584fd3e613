"""Recurrent layers of Keras as the operators GRU, LSTM and RNN of ONNX, in exports by the backend torch.

Keras' own exports repeat the operators of a step, and fold a part of a bias into the first one. The operators of ONNX have each
weight once.
"""

import numpy as np

__all__ = ["recurrent_call"]

_OPERATORS = {"GRU": "GRU", "LSTM": "LSTM", "SimpleRNN": "RNN"}
_GATES = {"GRU": (0, 1, 2), "LSTM": (0, 3, 1, 2), "RNN": (0,)}  # place in Keras of each gate of ONNX
_OF_RNN = ("tanh", "relu", "sigmoid")


def _is_operator(layer):
    import keras

    if type(layer) not in [getattr(keras.layers, name) for name in _OPERATORS] or not layer.built or layer.stateful:
        return False
    function, gates = (getattr(layer, name, None) for name in ("activation", "recurrent_activation"))
    if type(layer) is keras.layers.SimpleRNN:
        return function in [getattr(keras.activations, name) for name in _OF_RNN]
    return (function, gates) == (keras.activations.tanh, keras.activations.sigmoid)


def _weights(layer, kind):
    """Returns the inputs W, R and B of the operator, with B only if the layer has a bias."""
    from keras import ops

    def by_gate(weight):
        parts = np.split(np.array(ops.convert_to_numpy(weight)), len(_GATES[kind]), axis=-1)
        return np.concatenate([parts[place] for place in _GATES[kind]], axis=-1)

    cell = layer.cell
    made = [by_gate(one).T for one in (cell.kernel, cell.recurrent_kernel)]
    if cell.bias is not None:
        bias = by_gate(cell.bias).reshape(-1)
        size = 2 * made[0].shape[0]
        made.append(np.concatenate([bias, np.zeros(size - bias.size, np.float32)]))
    return [np.ascontiguousarray(one[None]) for one in made]


def recurrent_call(layer):
    """Returns a `call` that exports a recurrent layer as one operator. Returns None for other layers, and where ONNX does not
    have the layer's functions."""
    import torch

    if not _is_operator(layer):
        return None
    kind = _OPERATORS[type(layer).__name__]
    weights, attributes = [torch.from_numpy(one) for one in _weights(layer, kind)], {"hidden_size_i": layer.units}
    if kind == "GRU":
        attributes["linear_before_reset_i"] = int(layer.reset_after)
    if kind == "RNN":
        attributes["activations_s"] = [layer.activation.__name__.capitalize()]

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(context, x, *weights):
            state = (1, x.shape[1], layer.units)
            return (x.new_zeros((len(x), *state)), *(x.new_zeros(state) for _ in range(1 + (kind == "LSTM"))))

        @staticmethod
        def symbolic(graph, x, *weights):
            return graph.op(kind, x, *weights, outputs=2 + (kind == "LSTM"), **attributes)

    def call(sequences, initial_state=None, mask=None, training=False):
        if initial_state is not None or mask is not None:
            return type(layer).call(layer, sequences, initial_state=initial_state, mask=mask, training=training)
        x = torch.flip(sequences, [1]) if layer.go_backwards else sequences
        every, *states = Operator.apply(x.transpose(0, 1), *weights)
        states = [one[0] for one in states]
        result = every[:, 0].transpose(0, 1) if layer.return_sequences else states[0]
        return (result, *states) if layer.return_state else result

    return call
