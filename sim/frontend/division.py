"""The division of a model into parts that the core runs, and nodes that the host computes between them.

The core gets the largest sets of nodes that the reader accepts as models of their own. A set of nodes is convex: no path between
two of its nodes leaves it. So the parts can run one after the other.
"""

import heapq
import re
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper, numpy_helper

from ..data.printable import printable
from ..ir.errors import ModelError
from .branches import reads_of
from .evaluation import refusal_of_operator
from .index.values import FLOATS, INTEGERS, MOST_VALUES
from .messages import inline, title
from .multiplications import multiplications
from .reader import read_model
from .registry import ONNX

__all__ = ["IDLE", "Part", "divide", "nodes_model"]

IDLE = "has no multiplications around it, so the core would only move its data"


@dataclass(frozen=True, eq=False)
class Part:
    """Nodes that the core or the host computes together."""

    nodes: list  # in topological order
    inputs: tuple  # names of the values that it reads, other than constants
    outputs: tuple  # names of its results that other parts, or the user, read
    multiplications: int
    network: object = None  # sim.ir.graph.Graph, or None if the host computes the part
    #: (node, reason why the core does not compute it, its multiplications). Empty for a part of the core.
    why: tuple = ()


def divide(graph, keep_softmax=False, refusal=None):
    """Divides a :class:`.StaticGraph`. Returns its parts in an order in which they can run, as a list of :class:`Part`. `refusal`
    is the reader's error about the whole graph, if it is known."""
    nodes = [node for node in graph.nodes if not graph.constant.issuperset(filter(None, node.output))]
    return _Division(graph, nodes, keep_softmax).parts(refusal)


def nodes_model(graph, nodes, inputs, outputs):
    """Returns an `onnx.ModelProto` of some nodes of a :class:`.StaticGraph`, with the constants that they read."""
    makers = {name: node for node in graph.nodes for name in node.output if name in graph.constant}
    wanted, stack, constants = {}, [name for node in nodes for name in reads_of(node)] + list(outputs), {}
    while stack:
        name = stack.pop()
        if name in constants or name not in graph.constant:
            continue
        constants[name] = graph.initializers.get(name)
        if constants[name] is None and name in makers:
            wanted[id(makers[name])] = makers[name]
            stack += reads_of(makers[name])
    kept = [node for node in graph.nodes if id(node) in wanted] + list(nodes)
    entries = [[_entry(graph, name) for name in names] for names in (inputs, outputs)]
    stored = [tensor for _, tensor in sorted(constants.items()) if tensor is not None]
    opsets = [helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    made = helper.make_graph(kept, "part", *entries, stored)
    return helper.make_model(made, opset_imports=opsets, ir_version=graph.ir_version)


def _entry(graph, name):
    kind, shape = graph.kinds.get(name, (0, None))
    return (
        helper.make_tensor_value_info(name, kind, shape) if kind else onnx.ValueInfoProto(name=name, type=graph.types.get(name))
    )


class _Division:
    """One division of a graph. Nodes are numbers, in topological order."""

    def __init__(self, graph, nodes, keep_softmax):
        self.graph, self.nodes, self.keep_softmax = graph, nodes, keep_softmax
        self.reads = [sorted(reads_of(node) - graph.constant) for node in nodes]
        self.maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
        self.readers = {}
        for number, names in enumerate(self.reads):
            for name in names:
                self.readers.setdefault(name, []).append(number)
        self.work = [multiplications(graph, node) for node in nodes]
        self.why = {number: why for number, node in enumerate(nodes) if (why := self._never(node))}
        self.kinds = set()  # (operator, reason) of nodes that were refused with nothing before them
        self.accepted = []  # (numbers, network)

    def parts(self, refusal):
        stack = self._convex(range(len(self.nodes)))
        if refusal is not None and len(stack) == 1 and refusal.value in self.maker:
            stack = self._without(stack[0], refusal)
        while stack:
            numbers = stack.pop()
            if not any(self.work[number] for number in numbers):
                self.why.update(dict.fromkeys(numbers, IDLE))
                continue
            try:
                self.accepted.append((numbers, self._read(numbers)))
            except ModelError as error:
                stack += self._without(numbers, error)
        return self._ordered()

    # Parts of the core

    def _never(self, node):
        """Returns the reason why the core never computes a node, whatever is around it, or an empty text."""
        error = refusal_of_operator(node)
        if error is not None:
            return _reason(error, node)
        for name in (*reads_of(node), *filter(None, node.output)):
            kind, shape = self.graph.kinds.get(name, (0, None))
            if kind not in (*FLOATS, *INTEGERS) and not (node.domain not in ONNX and name in self.graph.constant):
                return f"{name!r} is not a tensor of numbers"
            if shape is None:
                return f"the shape of {printable(name, 80)!r} depends on data"
            if 0 in shape and name not in self.graph.constant:
                return f"{printable(name, 80)!r} is empty"
        return ""

    def _convex(self, numbers):
        """Divides a convex set of nodes into convex sets without nodes of the host. Returns lists of numbers."""
        level, inside = {}, set(numbers)
        for number in numbers:
            host = number in self.why
            before = [self.maker[name] for name in self.reads[number] if self.maker.get(name) in inside]
            level[number] = max((level[one] + ((one in self.why) != host) for one in before), default=int(host))
        groups = _Groups()
        for number in numbers:
            if number not in self.why:
                groups.join(("node", number), *((level[number], name) for name in self._values(number)))
        found = {}
        for number in numbers:
            if number not in self.why:
                found.setdefault((level[number], groups.of(("node", number))), []).append(number)
        return list(found.values())

    def _values(self, number):
        return (*self.reads[number], *filter(None, self.nodes[number].output))

    def _ends(self, numbers):
        """Returns the names of the inputs and of the outputs of a set of nodes."""
        inside = set(numbers)
        inputs = dict.fromkeys(name for one in numbers for name in self.reads[one] if self.maker.get(name) not in inside)
        wanted = set(self.graph.outputs)
        outputs = [
            name
            for one in numbers
            for name in self.nodes[one].output
            if name and (name in wanted or any(reader not in inside for reader in self.readers.get(name, ())))
        ]
        return tuple(inputs), tuple(outputs)

    def _read(self, numbers):
        inputs, outputs = self._ends(numbers)
        model = nodes_model(self.graph, [self.nodes[one] for one in numbers], inputs, outputs)
        return read_model(model, Path("part"), self.keep_softmax)

    def _without(self, numbers, error):
        """Divides a convex set of nodes that the reader refused. Returns convex sets. If the error names a node, the second set
        begins with it, as what is before it may be the reason. A node that is refused again is left to the host. A constant that
        the reader cannot compute is computed here."""
        if error.value in self.graph.constant and self._folded(error.value):
            return [numbers]
        refused = self._refused(numbers, error)
        if refused is None:
            halves = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
            return [part for some in halves for part in self._convex(some)]
        node = self.nodes[refused]
        after = self._after(refused, numbers)
        before = [one for one in numbers if one not in after]
        reason = _reason(error, node)
        kind = node.op_type, re.sub(r"[0-9]+", "#", reason)
        first = not any(self.maker.get(name) in before for name in self.reads[refused])
        if first or kind in self.kinds:
            self.kinds.add(kind)
            self.why[refused] = reason
            return self._convex(numbers)
        return self._convex(before) + self._convex(sorted(after))

    def _folded(self, name):
        """Computes a constant of the graph, and stores it. Returns False if it is stored, or cannot be computed."""
        if name in self.graph.initializers or self.graph.size(name) > MOST_VALUES:
            return False
        from onnx.reference import ReferenceEvaluator  # slow to import, and seldom needed

        try:
            (value,) = ReferenceEvaluator(nodes_model(self.graph, [], (), (name,))).run([name], {})
            self.graph.initializers[name] = numpy_helper.from_array(value, name)
        except Exception:  # of the package onnx, for a node that it cannot compute either
            return False
        return True

    def _refused(self, numbers, error):
        """Returns the number of the node that an error is about, or None."""
        if len(numbers) == 1:
            return numbers[0]
        makers = {name: one for one in numbers for name in self.nodes[one].output if name}
        if error.value in makers:
            return makers[error.value]
        text = str(error).partition(": ")[2]
        return next((one for one in numbers if text.startswith(title(self.nodes[one]))), None)

    def _after(self, first, numbers):
        """Returns a node, and the nodes of a set that depend on it."""
        inside, found, stack = set(numbers), set(), [first]
        while stack:
            one = stack.pop()
            if one in inside and one not in found:
                found.add(one)
                stack += [reader for name in self.nodes[one].output if name for reader in self.readers.get(name, ())]
        return found

    # The order of all parts

    def _ordered(self):
        """Returns all parts in an order in which they can run. Nodes of the host that follow each other are one part."""
        unit = {number: number for number in range(len(self.nodes))}
        core = {}
        for numbers, network in self.accepted:
            core[numbers[0]] = numbers, network
            unit.update(dict.fromkeys(numbers, numbers[0]))
        needs = {one: set() for one in unit.values()}
        users = {one: set() for one in unit.values()}
        for number, names in enumerate(self.reads):
            for name in names:
                other = unit[self.maker[name]] if name in self.maker else unit[number]
                if other != unit[number]:
                    needs[unit[number]].add(other)
                    users[other].add(unit[number])
        ready = [(one in core, one) for one, needed in needs.items() if not needed]
        heapq.heapify(ready)  # nodes of the host come first, so that there are few parts
        parts, host = [], []
        if fixed := tuple(name for name in self.graph.outputs if name in self.graph.constant):
            parts.append(Part([], (), fixed, 0))
        while ready:
            _, one = heapq.heappop(ready)
            if one in core:
                parts += [self._part(host)] if host else []
                parts.append(self._part(*core[one]))
                host = []
            else:
                host.append(one)
            for user in users[one]:
                needs[user].discard(one)
                if not needs[user]:
                    heapq.heappush(ready, (user in core, user))
        return parts + ([self._part(host)] if host else [])

    def _part(self, numbers, network=None):
        numbers = sorted(numbers)
        why = () if network else tuple((self.nodes[one], self.why[one], self.work[one]) for one in numbers)
        work = sum(self.work[one] for one in numbers)
        return Part([self.nodes[one] for one in numbers], *self._ends(numbers), work, network, why)


class _Groups:
    """Disjoint groups of things, which grow together."""

    def __init__(self):
        self._parent = {}

    def of(self, thing):
        self._parent.setdefault(thing, thing)
        while self._parent[thing] != thing:
            self._parent[thing] = self._parent[self._parent[thing]]
            thing = self._parent[thing]
        return thing

    def join(self, first, *others):
        for other in others:
            self._parent[self.of(other)] = self.of(first)


def _reason(error, node):
    """Returns the cause in a refusal, without the node and the remedy."""
    text = str(error)
    text = text.partition(f"{title(node)}: ")[2] or text
    return inline(text.partition("; ")[0], 160)
