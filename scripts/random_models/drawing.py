"""A random ONNX graph that grows node by node, and the registry of blocks that make it grow."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Value", "Block", "BLOCKS", "block", "Drawing"]


@dataclass(frozen=True)
class Value:
    """A floating-point tensor of the graph. `shape` is the shape of one sample; the batch is the axis before it."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """A kind of block."""

    #: Callable. Takes a :class:`Drawing` and the :class:`Value` to read. Appends nodes and returns the result. Returns None,
    #: without any node, if the value does not fit.
    make: Callable
    ranks: tuple[int, ...]  # numbers of axes of a sample that fit
    opset: int  # the first opset that has the operators of the block
    share: float  # relative frequency


#: {name: Block}. The file of each kind enters its blocks here.
BLOCKS: dict[str, Block] = {}


def block(*ranks, opset=13, share=1.0):
    """Registers the decorated function as a :class:`Block`."""

    def decorate(make):
        BLOCKS[make.__name__] = Block(make, ranks, opset, share)
        return make

    return decorate


class Drawing:
    """A random graph under construction.

    Parameters
    ----------
    rng : numpy.random.Generator
    opset : int
    batch : int or None
        Batch size of the model's inputs. None leaves it open.
    """

    def __init__(self, rng, opset, batch):
        self.rng, self.opset, self.batch = rng, opset, batch
        self.nodes, self.constants, self.inputs, self.outputs = [], [], [], []
        self.values = []  # of the chain of blocks, for blocks that read two values
        self.rows = {}  # {input with integers: exclusive limit}

    # Random choices

    def integer(self, low, high):
        """Returns an integer from `low` to `high`, inclusive."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, *options):
        return options[int(self.rng.integers(len(options)))]

    def chance(self, probability):
        return self.rng.random() < probability

    def either_order(self, one, two):
        """Returns two values or names in random order."""
        return (one, two) if self.chance(0.5) else (two, one)

    def divisor(self, number):
        """Returns a divisor of a number."""
        return self.choose(*(one for one in range(1, number + 1) if number % one == 0))

    def width(self):
        """Returns a number of channels: mostly a few, sometimes more than the rows of an array."""
        return self.integer(1, 9) if self.chance(0.85) else self.integer(10, 36)

    def normal(self, *shape, spread=1.0, centre=0.0):
        return self.rng.normal(centre, spread, shape).astype(np.float32)

    def weights(self, *shape, inputs):
        """Returns random weights whose sums over `inputs` products keep the operands' size."""
        return self.normal(*shape, spread=inputs**-0.5)

    # Parts of the graph

    def constant(self, array):
        """Adds a constant. Returns its name."""
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def input(self, *shape, kind=TensorProto.FLOAT, rows=None):
        """Adds an input. Returns its name. `rows` is the exclusive limit of the integers of an integer input."""
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, kind, ["n" if self.batch is None else self.batch, *shape]))
        if rows is not None:
            self.rows[name] = rows
        return name

    def nodes_of(self, operator, inputs, outputs=1, domain="", **attributes):
        """Adds a node. Inputs are names, arrays, values, or None for an input that is left out. Returns the names of its
        outputs."""
        names = [self._named(one) for one in inputs]
        made = [f"t{len(self.nodes)}_{place}" for place in range(outputs)]
        name = f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, made, name, domain=domain, **attributes))
        return made

    def _named(self, one):
        if isinstance(one, Value):
            return one.name
        if isinstance(one, (np.ndarray, np.generic, float)):
            return self.constant(np.float32(one) if isinstance(one, float) else one)
        return one or ""

    def node(self, operator, *inputs, **attributes):
        """Adds a node with one output. Returns the name of the output."""
        return self.nodes_of(operator, inputs, **attributes)[0]

    def value(self, operator, shape, *inputs, **attributes):
        """Adds a node with one output. Returns its :class:`Value`; `shape` is the shape of one sample."""
        return Value(self.node(operator, *inputs, **attributes), tuple(map(int, shape)))

    def target(self, *shape):
        """Returns the target of a Reshape to (batch, *shape)."""
        first = self.choose(-1, 0) if self.batch is None else self.choose(-1, 0, self.batch)
        return np.array([first, *shape], np.int64)

    def reshaped(self, x, *shape):
        """Adds a Reshape to the sample shape `shape`."""
        return self.value("Reshape", shape, x, self.target(*shape))

    def transposed(self, x, *order):
        """Adds a Transpose of the axes of a sample, counted from 0."""
        return self.value("Transpose", [x.shape[axis] for axis in order], x, perm=[0, *(1 + axis for axis in order)])

    def summed(self, x, axes, operator="ReduceSum", keep=True):
        """Adds a reduction of axes of a sample, counted from 0."""
        shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keep or axis not in axes]
        numbers = [axis + 1 if self.chance(0.5) else axis - len(x.shape) for axis in axes]
        if operator != "ReduceSum" and self.opset < 18:
            return self.value(operator, shape, x, axes=numbers, keepdims=int(keep))
        return self.value(operator, shape, x, np.array(numbers, np.int64), keepdims=int(keep))

    def grow(self, x, *names):
        """Appends a random block, or one of the named blocks, that fits the value `x`. Returns its result."""
        fitting = [
            one
            for name, one in BLOCKS.items()
            if (name in names or not names) and len(x.shape) in one.ranks and one.opset <= self.opset
        ]
        shares = np.array([one.share for one in fitting])
        for number in self.rng.choice(len(fitting), len(fitting), replace=False, p=shares / shares.sum()) if fitting else ():
            made = fitting[number].make(self, x)
            if made is not None:
                return made
        return x

    def model(self):
        """Returns the ONNX model with the outputs :attr:`outputs`, without nodes that no output needs."""
        needed, nodes = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.insert(0, node)
        kinds = {node.output[0]: TensorProto.INT64 for node in nodes if node.op_type == "ArgMax"}
        outputs = [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in self.outputs]
        graph = helper.make_graph(
            nodes,
            "random",
            [one for one in self.inputs if one.name in needed],
            outputs,
            [one for one in self.constants if one.name in needed],
        )
        domains = {node.domain for node in nodes if node.domain}
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in sorted(domains))]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8 if self.opset < 21 else 10)
