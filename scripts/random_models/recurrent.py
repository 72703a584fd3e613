"""Recurrent layers of several steps."""

import numpy as np

from amaranth_tpu.sim.frontend.apply import supported_operators

from .drawing import Value, block
from .recurrence import GATES, STATES

__all__ = []


@block(2, share=3)
def recurrent_layer(g, x):
    """LSTM, GRU or RNN over the positions (steps, inputs), in one or both directions, with any of their outputs."""
    operator = g.choose(*(name for name in GATES if name in supported_operators()["linear"]))
    steps, inputs = x.shape
    if steps > 8:
        return None
    direction = g.choose("forward", "reverse", "bidirectional")
    ways, hidden, gates = 1 + (direction == "bidirectional"), g.integer(1, 9), len(GATES[operator])
    weights = [g.weights(ways, gates * hidden, size, inputs=size) for size in (inputs, hidden)]
    bias = g.normal(ways, 2 * gates * hidden, spread=0.5) if g.chance(0.7) else None
    arguments = [g.node("Transpose", x, perm=[1, 0, 2]), *weights, bias, None, *_states(g, operator, ways, hidden)]
    attributes = {"hidden_size": hidden, "direction": direction}
    if operator == "GRU":
        attributes["linear_before_reset"] = g.integer(0, 1)
    made = g.nodes_of(operator, arguments, 1 + STATES[operator], **attributes)
    if g.chance(0.3):
        last = g.node("Transpose", made[g.integer(1, len(made) - 1)], perm=[1, 0, 2])
        return g.reshaped(Value(last, (ways, hidden)), ways * hidden)
    sequence = Value(g.node("Transpose", made[0], perm=[2, 0, 1, 3]), (steps, ways, hidden))
    return g.reshaped(sequence, steps, ways * hidden)


def _states(g, operator, ways, hidden):
    """Returns the initial states: left out, constant, or inputs of the model, whose next values are outputs."""
    kind = g.choose("none", "none", "constant", "input")
    count = STATES[operator]
    if kind == "constant" and g.batch is not None:
        return [np.repeat(g.normal(ways, 1, hidden), g.batch, axis=1) for _ in range(count)]
    if kind == "input":
        return [g.node("Transpose", g.input(ways, hidden), perm=[1, 0, 2]) for _ in range(count)]
    return []
