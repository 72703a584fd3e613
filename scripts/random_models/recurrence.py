"""Recurrent layers in small operators, as ONNX defines them: each gate of each step is a tensor of its own."""

import numpy as np
from onnx import helper

__all__ = ["GATES", "STATES", "in_small_operators"]

#: {operator: its gates, in the order of its weights}
GATES = {"RNN": "i", "GRU": "zrh", "LSTM": "iofc"}
#: {operator: number of states}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


class _Steps:
    """The nodes of one layer, and the constants that they need."""

    def __init__(self, node):
        self.name, self.nodes, self.constants = node.name, [], {}
        self.attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}

    def add(self, operator, *inputs, **attributes):
        """Adds a node. Returns its output. None among the operands of Add and Mul stands for zeros."""
        if operator in ("Add", "Mul") and None in inputs:
            return None if operator == "Mul" else next((one for one in inputs if one is not None), None)
        name = f"{self.name} {operator} {len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def parts(self, name, count, axis):
        """Adds a Split into parts of size 1. Returns their names."""
        if not name or count == 1:
            return [name or None] * count
        made = [f"{self.name} part {len(self.nodes)} {place}" for place in range(count)]
        sizes = self.constant(np.ones(count, np.int64))
        self.nodes.append(helper.make_node("Split", [name, sizes], made, axis=axis))
        return made

    def constant(self, array):
        name = f"{self.name} constant {len(self.constants)}"
        self.constants[name] = array
        return name


class _Direction:
    """One direction of a layer."""

    def __init__(self, steps, operator, weights, again, bias):
        self.steps, self.operator = steps, operator
        hidden = again.shape[1]
        bias = np.zeros(2 * len(weights), np.float32) if bias is None else bias

        def cut(array, first=0):
            parts = (array[first + place * hidden : first + (place + 1) * hidden] for place in range(len(GATES[operator])))
            return {gate: steps.constant(np.ascontiguousarray(part.T)) for gate, part in zip(GATES[operator], parts)}

        self.weights, self.again, self.before, self.after = cut(weights), cut(again), cut(bias), cut(bias, len(weights))

    def _of_state(self, gate, state):
        product = None if state is None else self.steps.add("MatMul", state, self.again[gate])
        return self.steps.add("Add", product, self.after[gate])

    def _gate(self, gate, x, of_state, function="Sigmoid"):
        add = self.steps.add
        sums = add("Add", add("MatMul", x, self.weights[gate]), self.before[gate])
        return add(function, add("Add", sums, of_state))

    def RNN(self, x, state):
        return [self._gate("i", x, self._of_state("i", state[0]), "Tanh")]

    def GRU(self, x, state):
        add, (state,) = self.steps.add, state
        z, r = (self._gate(gate, x, self._of_state(gate, state)) for gate in "zr")
        if self.steps.attributes.get("linear_before_reset"):
            of_state = add("Mul", r, self._of_state("h", state))
        else:
            of_state = self._of_state("h", add("Mul", r, state))
        new = self._gate("h", x, of_state, "Tanh")
        kept = add("Sub", self.steps.constant(np.float32(1)), z)
        return [add("Add", add("Mul", kept, new), add("Mul", z, state))]

    def LSTM(self, x, state):
        add, (state, cell) = self.steps.add, state
        i, o, f = (self._gate(gate, x, self._of_state(gate, state)) for gate in "iof")
        new = self._gate("c", x, self._of_state("c", state), "Tanh")
        cell = add("Add", add("Mul", i, new), add("Mul", f, cell))
        return [add("Mul", o, add("Tanh", cell)), cell]


def in_small_operators(node, steps, constants):
    """Returns the nodes that compute a recurrent layer of `steps` steps, and the constants that they read.

    Parameters
    ----------
    constants : dict of str to array
        The model's constants, with weights and bias of the layer.
    """
    made, states = _Steps(node), STATES[node.op_type]
    x, weights, again, bias, _, *first = [*node.input, *[""] * 7][:7]
    ways, direction = len(constants[weights]), made.attributes.get("direction", b"forward")
    inputs, starts = made.parts(x, steps, 0), [made.parts(name, ways, 0) for name in first[:states]]
    rows, ends = [], []
    for way in range(ways):
        arrays = [constants[name][way] if name else None for name in (weights, again, bias)]
        layer, state = _Direction(made, node.op_type, *arrays), [one[way] for one in starts]
        row, backwards = [None] * steps, direction == b"reverse" or way == 1
        for step in reversed(range(steps)) if backwards else range(steps):
            state = getattr(layer, node.op_type)(inputs[step], state)
            row[step] = state[0]
        rows.append(row)
        ends.append(state)
    sequence = [made.add("Concat", *one, axis=0) for one in zip(*rows)]
    axes = made.constant(np.array([0], np.int64))
    sequence = [made.add("Unsqueeze", one, axes) for one in sequence]
    for name, joined in zip(node.output, [sequence, *zip(*ends)]):
        if name:
            made.nodes.append(helper.make_node("Concat", list(joined), [name], axis=0))
    return made.nodes, made.constants
