"""Random graphs of operators that move, join and reduce axes. Batch, channels and height often have the same size, so that the
reader cannot tell axes apart by size."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import Builder, reference


def golden(network, x):
    results = run_network(network, x.reshape(-1, network.input_size))
    if network.softmax:
        results = np.exp(results - results.max(1, keepdims=True))
        results /= results.sum(1, keepdims=True)
    return results


def compare(path, inputs, scale=1.0):
    """Returns "refused" if the reader refuses the model. Returns "accepted" if the golden model gives the same results as ONNX,
    within bfloat16 rounding, for all inputs that ONNX accepts.

    Parameters
    ----------
    inputs : list of float32 arrays
    scale : float
        Size of intermediate values, whose rounding errors remain where values cancel.
    """
    try:
        network = load_network(path)
    except ModelError:
        return "refused"
    taken = 0
    for x in inputs:
        try:
            wanted = reference(path, x)
        except Exception as error:  # onnxruntime has a class for each kind of refusal
            assert "onnxruntime" in type(error).__module__, error
            continue
        taken += 1
        got = golden(network, x)
        assert got.size == wanted.size, (path, x.shape, wanted.shape, got.shape)
        error, most = np.abs(got.reshape(wanted.shape) - wanted).max(), 0.02 * np.abs(wanted).max() + scale / 128
        assert error < most, (path, x.shape, wanted.shape, error, most)
    assert taken, f"{path}: accepted, though ONNX takes none of the inputs"
    return "accepted"


class ShapeGraph:
    """A random graph of operators that move, join and reduce axes.

    Parameters
    ----------
    rng : numpy.random.Generator
    samples : int
        Batch size used to compute shapes.
    first : "open", "fixed" or "absent"
        The input's batch axis: open, fixed to `samples`, or absent. If absent, the first axis belongs to the only sample.
    """

    def __init__(self, rng, samples, first):
        self.rng, self.samples = rng, samples
        rank = int(rng.choice([1, 2, 2, 3, 3, 3]))
        shape = [int(rng.choice([samples, samples, 1, 2, 3])) for _ in range(rank)]
        shape = [samples, *shape]
        self.shape = shape
        self.b = Builder(["n" if first == "open" else samples, *shape[1:]], opset=int(rng.choice([13, 18])))
        self.x = self.sample(samples)
        self.values = {"x": self.x}
        self.scaled, self.scale = {"x"}, 3.0  # values that depend on the input, and their magnitude

    def sample(self, samples):
        return self.rng.integers(-3, 4, (samples, *self.shape[1:])).astype(np.float32)

    # ---- one node

    def add(self, operator, *inputs, **attributes):
        """Adds a node if ONNX accepts it. Returns the name of its output, or None."""
        constants, nodes = len(self.b.constants), len(self.b.nodes)
        name = self.b.node(operator, list(inputs), **attributes)
        node = self.b.nodes[-1]
        known = {c.name: numpy_helper.to_array(c) for c in self.b.constants[constants:]} | self.values
        try:
            with np.errstate(all="ignore"):
                value = ReferenceEvaluator(node, opsets={"": self.b.opset}).run(None, {i: known[i] for i in node.input if i})[0]
            if not 0 < value.size <= 4000 or value.ndim > 5:
                raise ValueError("too large to go on with, or empty")
        except Exception:  # whatever the interpreter says of arguments that do not fit
            del self.b.nodes[nodes:], self.b.constants[constants:]
            return None
        self.values |= known | {name: value}
        if operator not in ("Shape", "Size") and self.scaled.intersection(node.input):
            self.scaled.add(name)
            self.scale = max(self.scale, np.abs(value).max())
        return name

    def grow(self, name):
        """Appends one or a few random nodes that read the value `name`. Returns the name of their result."""
        draw = self.rng.choice(self.DRAWS) if self.values[name].ndim else "unsqueeze"
        return getattr(self, f"_{draw}")(name, self.values[name]) or name

    def finish(self, steps):
        name = self.add("Mul", "x", np.array(0.5, np.float32))
        self.others = ["x", name]
        for _ in range(steps):
            name = self.grow(name)
            self.others.append(name)
        self.b.last = name
        needed = {name}
        for node in reversed(self.b.nodes):
            needed.update(node.input if needed.intersection(node.output) else ())
        self.b.nodes = [node for node in self.b.nodes if needed.intersection(node.output)]
        return name

    #: Kinds of nodes, as often as they are drawn.
    DRAWS = (
        "transpose reshape reshape reshape_computed flatten squeeze unsqueeze expand slice gather split pad concat reduce reduce "
        "softmax two two two constant constant bounded slope normalise matmul gemm convolve pool size size zeros sum"
    ).split()

    def _axis(self, value, beyond=0):
        return int(self.rng.integers(-value.ndim - beyond, value.ndim + beyond))

    def _some(self, value):
        axes = self.rng.permutation(value.ndim)[: self.rng.integers(1, value.ndim + 1)]
        return np.array([axis - value.ndim * int(self.rng.random() < 0.3) for axis in axes])

    def _like(self, value):
        shape = [int(size) if self.rng.random() < 0.5 else 1 for size in value.shape]
        cut = int(self.rng.integers(0, len(shape) + 1)) if self.rng.random() < 0.5 else 0
        extra = [int(self.rng.choice([1, 1, self.samples]))] if self.rng.random() < 0.2 else []
        return [*extra, *shape[cut:]]

    def _transpose(self, name, value):
        return self.add("Transpose", name, perm=self.rng.permutation(value.ndim).tolist())

    def _target(self, value):
        shape = list(value.shape)
        for _ in range(self.rng.integers(1, 3)):
            at = int(self.rng.integers(0, len(shape) + 1))
            if at + 1 < len(shape) and self.rng.random() < 0.5:
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
            elif at < len(shape):
                factor = int(self.rng.choice([f for f in (1, 2, 3, 4, shape[at]) if shape[at] % f == 0]))
                shape[at : at + 1] = [factor, shape[at] // factor]
            else:
                shape = self.rng.permutation(shape).tolist()
        return shape

    def _reshape(self, name, value):
        shape = self._target(value)
        for at, size in enumerate(shape):
            if at < value.ndim and size == value.shape[at] and self.rng.random() < 0.4:
                shape[at] = 0
        if self.rng.random() < 0.6 and shape:
            shape[int(self.rng.integers(len(shape)))] = -1
        return self.add("Reshape", name, np.array(shape, np.int64))

    def _reshape_computed(self, name, value):
        shape = self._target(value)
        other = str(self.rng.choice([name, "x"]))
        read, at = int(self.rng.integers(max(1, self.values[other].ndim))), int(self.rng.integers(len(shape) + 1))
        entry = self.add("Gather", self.add("Shape", other), np.array([read]))
        parts = [np.array(part, np.int64) for part in (shape[:at], shape[at + 1 :])]
        if self.rng.random() < 0.5 and parts[1].size:
            parts[1][-1] = -1
        parts = [self.b.constant(part) for part in parts]
        self.values |= {c.name: numpy_helper.to_array(c) for c in self.b.constants[-2:]}
        target = self.add("Concat", parts[0], entry, parts[1], axis=0)
        return target and self.add("Reshape", name, target)

    def _flatten(self, name, value):
        return self.add("Flatten", name, axis=int(self.rng.integers(-value.ndim, value.ndim + 1)))

    def _squeeze(self, name, value):
        ones = np.flatnonzero(np.array(value.shape) == 1)
        if self.rng.random() < 0.3 or not ones.size:
            return self.add("Squeeze", name)
        return self.add("Squeeze", name, self.rng.permutation(ones)[: self.rng.integers(1, len(ones) + 1)])

    def _unsqueeze(self, name, value):
        return self.add("Unsqueeze", name, np.array([self._axis(value, 1)]))

    def _expand(self, name, value):
        shape = [
            int(size) if size != 1 or self.rng.random() < 0.5 else int(self.rng.choice([2, self.samples])) for size in value.shape
        ]
        shape = [1 if self.rng.random() < 0.4 else size for size in shape]
        return self.add("Expand", name, np.array([*([self.samples] if self.rng.random() < 0.3 else []), *shape], np.int64))

    def _slice(self, name, value):
        axis = self._axis(value)
        size = value.shape[axis]
        start, end = (int(v) for v in self.rng.integers(-size - 1, size + 2, 2))
        if self.rng.random() < 0.3:
            start, end = 0, int(self.rng.choice([size, 2**31 - 1, 2**63 - 1]))
        step = int(self.rng.choice([1, 1, 1, 2, -1, -2]))
        return self.add("Slice", name, *(np.array([number]) for number in (start, end, axis, step)))

    def _gather(self, name, value):
        axis = self._axis(value)
        size = value.shape[axis]
        shape = [(), (1,), (2,), (2, 2), (size,)][self.rng.integers(5)]
        return self.add("Gather", name, self.rng.integers(-size, size, shape), axis=axis)

    def _split(self, name, value):
        axis = self._axis(value)
        size = value.shape[axis]
        if size < 2:
            return None
        cut = int(self.rng.integers(1, size))
        made = self.add("Split", name, np.array([cut, size - cut]), axis=axis)
        if made:  # the interpreter needs the second output, too
            self.b.nodes[-1].output.append(made + "b")
        return made

    def _pad(self, name, value):
        pads = self.rng.choice([0, 0, 0, 1, 2, -1], 2 * value.ndim)
        return self.add("Pad", name, pads.astype(np.int64), mode=str(self.rng.choice(["constant", "edge", "reflect"])))

    def _concat(self, name, value):
        fitting = [n for n in self.others if self.values[n].ndim == value.ndim]
        return self.add("Concat", *[str(n) for n in self.rng.choice([name, *fitting], 2)], axis=self._axis(value))

    def _reduce(self, name, value):
        operator = str(self.rng.choice(["ReduceMax", "ReduceMean", "ReduceSum"]))
        axes, keep = self._some(value), int(self.rng.random() < 0.5)
        if operator != "ReduceSum" and self.b.opset < 18:
            return self.add(operator, name, axes=axes.tolist(), keepdims=keep)
        if self.rng.random() < 0.15:
            return self.add(operator, name, np.array([], np.int64), keepdims=keep, noop_with_empty_axes=int(self.rng.integers(2)))
        return self.add(operator, name, axes, keepdims=keep)

    def _softmax(self, name, value):
        return self.add("Softmax", name, axis=self._axis(value))

    def _fitting(self, name, value):
        """Returns the earlier values, or `name`, whose shapes ONNX broadcasts to the shape of `value`."""
        pairs = [(one, zip(self.values[one].shape[::-1], value.shape[::-1])) for one in self.others]
        return [one for one, sizes in pairs if all(a == b or 1 in (a, b) for a, b in sizes)] or [name]

    def _two(self, name, value):
        other = str(self.rng.choice(self._fitting(name, value)))
        return self.add(str(self.rng.choice(["Add", "Sub", "Mul", "Add"])), *self.rng.permutation([name, other]).tolist())

    def _sum(self, name, value):
        fitting = self._fitting(name, value)
        return self.add("Sum", name, *[str(one) for one in self.rng.choice(fitting, self.rng.integers(0, 3))])

    def _constant(self, name, value):
        constant = self.rng.integers(-2, 3, self._like(value)).astype(np.float32)
        operator = str(self.rng.choice(["Add", "Sub", "Mul", "Div"]))
        constant = np.where(constant == 0, 1, constant) if operator == "Div" else constant
        return self.add(operator, *((name, constant) if self.rng.random() < 0.8 or operator == "Div" else (constant, name)))

    # Functions without a table, because a table takes a second to compute.

    def _bounded(self, name, value):
        if self.rng.random() < 0.3:
            return self.add("Clip", name, np.zeros((1,) if self.rng.random() < 0.5 else (), np.float32))
        return self.add("Max", name, np.zeros(self._like(value), np.float32)) or self.add("Relu", name)

    def _slope(self, name, value):
        slope = self.rng.choice([0.5, 0.25], self._like(value)).astype(np.float32)
        if slope.size > 1:
            slope.reshape(-1)[:2] = 0.5, 0.25
            return self.add("PRelu", name, slope)
        return None

    def _normalise(self, name, value):
        if value.ndim < 2:
            return None
        scale, bias, mean = (self.rng.integers(-2, 3, value.shape[1]).astype(np.float32) for _ in range(3))
        return self.add("BatchNormalization", name, scale, bias, mean, np.ones(value.shape[1], np.float32))

    def _matmul(self, name, value):
        if value.ndim == 0:
            return None
        weights = self.rng.integers(-1, 2, (value.shape[-1], int(self.rng.integers(1, 4)))).astype(np.float32)
        kind = self.rng.random()
        return self.add("MatMul", name, weights[:, 0] if kind < 0.1 else weights[None] if kind < 0.2 else weights)

    def _gemm(self, name, value):
        if value.ndim != 2:
            return None
        outputs = int(self.rng.integers(1, 4))
        weights = self.rng.integers(-1, 2, (value.shape[1], outputs)).astype(np.float32)
        bias = self.rng.integers(-1, 2, [(), (outputs,), (1, outputs), (len(value), 1)][self.rng.integers(4)])
        return self.add("Gemm", name, weights, bias.astype(np.float32))

    def _convolve(self, name, value):
        if value.ndim not in (3, 4):
            return None
        weights = self.rng.integers(-1, 2, (int(self.rng.integers(1, 4)), value.shape[1], *[1] * (value.ndim - 2)))
        return self.add("Conv", name, weights.astype(np.float32))

    def _pool(self, name, value):
        if value.ndim not in (3, 4):
            return None
        operator = str(self.rng.choice(["GlobalMaxPool", "GlobalAveragePool", "MaxPool"]))
        attributes = {"kernel_shape": [int(self.rng.integers(1, size + 1)) for size in value.shape[2:]]}
        return self.add(operator, name, **(attributes if operator == "MaxPool" else {}))

    def _size(self, name, value):
        """Appends an operator that uses a size as data, as a bound, or in a ratio in which the batch cancels."""
        other = str(self.rng.choice([name, "x"]))
        size = self.add("Size", other)
        if self.rng.random() < 0.7:
            size = self.add("Gather", self.add("Shape", other), np.array(int(self.rng.integers(self.values[other].ndim))))
            if self.rng.random() < 0.3:
                size = self.add("Div", self.add("Size", other), size)
            elif self.rng.random() < 0.3:
                size = self.add("Min", size, np.array(2))
        number = self.add("Cast", size, to=TensorProto.FLOAT)
        return self.add(str(self.rng.choice(["Div", "Add", "Mul"])), name, number)

    def _zeros(self, name, value):
        shape = self.add("Shape", name)
        fill = float(self.rng.choice([0, 0, 1]))
        made = self.add("ConstantOfShape", shape, value=helper.make_tensor("v", TensorProto.FLOAT, [1], [fill]))
        if self.rng.random() < 0.5:
            return self.add("Concat", name, made, axis=self._axis(value))
        return self.add("Add", name, made)
