"""Gate-level simulation of a mapped module: many independent samples at once, with the transitions of each net."""

from collections import defaultdict

from .liberty import LibertyError

__all__ = ["GateRun"]


class GateRun:
    """A simulation of a flat mapped module. Each net holds an integer with one bit per sample.

    In a cycle, all gates have the same delay, so paths of different lengths make glitches. All registers have one clock.

    Parameters
    ----------
    module : dict
        A module of Yosys' JSON.
    library : hw.standard_cells.liberty.Library
    samples : int
        Independent samples.

    Attributes
    ----------
    settled, all_edges : dict
        {net: number of transitions}: between the final values of cycles, and with glitches.
    gates : list
        `(StandardCell, {pin: net})` of gates and registers.

    Raises
    ------
    LibertyError
        If the module has a cell that the library does not describe as a gate or an edge-triggered register.
    """

    def __init__(self, module, library, samples):
        self.ones = (1 << samples) - 1
        self.values = defaultdict(int, {"1": self.ones, "0": 0, "x": 0})
        self.settled, self.all_edges = defaultdict(int), defaultdict(int)
        self.ports = {name: port["bits"] for name, port in module["ports"].items()}
        self.gates = [_known(cell, library) for cell in module["cells"].values()]
        self._combinational = [self._drivers(cell, nets) for cell, nets in self.gates if not cell.register]
        self._registers = [gate for gate in self.gates if gate[0].register]
        self._readers = defaultdict(list)
        for number, (_, inputs, _) in enumerate(self._combinational):
            for _, net in inputs:
                self._readers[net].append(number)
        self._changed = set(range(len(self._combinational)))
        self._settle(count=False)

    @staticmethod
    def _drivers(cell, nets):
        inputs = [(name, nets[name]) for name in cell.inputs]
        outputs = [(pin.function, nets[pin.name]) for pin in cell.outputs if pin.name in nets]
        return cell, inputs, outputs

    def _set(self, net, value):
        self.values[net] = value
        self._changed.update(self._readers[net])

    def _settle(self, count=True):
        """Evaluates gates until no net changes. Each pass is one gate delay."""
        values = self.values
        for _ in range(len(self._combinational) + 1):
            if not self._changed:
                return
            gates, self._changed, updates = self._changed, set(), []
            for number in gates:
                _, inputs, outputs = self._combinational[number]
                operands = {name: values[net] for name, net in inputs}
                for function, net in outputs:
                    value = function(operands, self.ones)
                    if value != values[net]:
                        updates.append((net, value))
            for net, value in updates:
                if count:
                    self.all_edges[net] += (value ^ values[net]).bit_count()
                self._set(net, value)
        raise LibertyError("the mapped netlist has a loop of gates; name another Liberty file")

    def _next_states(self):
        """Returns {net: value after the clock edge} of the registers' outputs."""
        after = {}
        for cell, nets in self._registers:
            state, inverse, function, _ = cell.register
            value = function({name: self.values[nets[name]] for name in cell.inputs if name in nets}, self.ones)
            states = {state: value, inverse: self.ones ^ value}
            after |= {nets[pin.name]: pin.function(states, self.ones) for pin in cell.outputs if pin.name in nets}
        return after

    def cycle(self, inputs, count=True):
        """Applies a clock edge, then the inputs of the new cycle, {port: list of integers, lowest bit first}. Settles the nets.

        With `count`, adds the transitions to `settled` and `all_edges`.
        """
        before, after = dict(self.values), self._next_states()
        for name, bits in inputs.items():
            after |= dict(zip(self.ports[name], bits))
        for net, value in after.items():
            if value != self.values[net]:
                if count:
                    self.all_edges[net] += (value ^ self.values[net]).bit_count()
                self._set(net, value)
        self._settle(count)
        for net, value in self.values.items() if count else ():
            if edges := (value ^ before.get(net, 0)).bit_count():
                self.settled[net] += edges

    def read(self, port):
        """Returns the integers of a port's bits, lowest bit first."""
        return [self.values[net] for net in self.ports[port]]


def _known(cell, library):
    found = library.cells.get(cell["type"])
    if found is None or any(pin.function is None for pin in found.outputs if pin.name in cell["connections"]):
        raise LibertyError(f"{cell['type']} is not a gate or register of library {library.name}; name another Liberty file")
    nets = {name: bits[0] for name, bits in cell["connections"].items()}
    return found, {name: net if isinstance(net, int) else str(net) for name, net in nets.items()}
