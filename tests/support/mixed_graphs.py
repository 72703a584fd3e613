"""Random graphs that mix all kinds of operators and magnitudes, compared with onnxruntime as closely as bfloat16 intermediate
values allow.

The tolerance is measured on the model itself: each of its values is multiplied by noise of the size of bfloat16 rounding errors.
"""

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import expressions
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.ir.errors import ModelError
from onnx_models import weights
from shape_graphs import ShapeGraph

__all__ = ["MixedGraph", "check"]

_NOISE = 2.0**-8
_TRIALS = 18
_LARGEST = 1e15  # limit of intermediate values


class MixedGraph(ShapeGraph):
    """A :class:`ShapeGraph` with all kinds of operators. If `safe`, most operators avoid the first axis, so that more graphs are
    accepted."""

    DRAWS = (
        "transpose",
        "reshape",
        "reshape_computed",
        "flatten",
        "unsqueeze",
        "slice",
        "gather",
        "pad",
        "concat",
        "reduce",
        "reduce",
        "softmax",
        "two",
        "two",
        "constant",
        "bounded",
        "slope",
        "normalise",
        "matmul",
        "gemm",
        "convolve",
        "pool",
        "sum",
        *("dense", "window", "function", "written") * 3,
        "windowed_pool",
        "windowed_pool",
        "gate",
        "extreme",
        "choice",
    )

    def __init__(self, rng, samples, first, safe):
        self.safe = safe
        super().__init__(rng, samples, first)

    def sample(self, samples):
        sizes = 10.0 ** self.rng.choice([-3, -1, 0, 0, 0, 1, 2], (samples, *[1] * (len(self.shape) - 1)))
        return round_bfloat16((self.rng.normal(size=(samples, *self.shape[1:])) * sizes).astype(np.float32)).astype(np.float32)

    def _axis(self, value, beyond=0):
        ranks = value.ndim + beyond
        axis = super()._axis(value, beyond)
        return int(self.rng.integers(1, ranks)) if self.safe and axis % ranks == 0 and ranks > 1 else axis

    def _some(self, value):
        axes = super()._some(value)
        inner = axes[axes % value.ndim != 0] if self.safe else axes
        return inner if inner.size else np.array([value.ndim - 1])

    def _transpose(self, name, value):
        if not self.safe:
            return super()._transpose(name, value)
        return self.add("Transpose", name, perm=[0, *(1 + self.rng.permutation(value.ndim - 1)).tolist()])

    def _dense(self, name, value):
        return value.ndim > 1 and self.add(
            "MatMul", name, weights(self.rng, int(self.rng.integers(1, 7)), value.shape[-1]).T.copy()
        )

    def _sizes(self, value, smaller):
        kernel = [int(self.rng.integers(1, min(4, size) + 1)) for size in value.shape[2:]]
        pads = [int(self.rng.integers(0, k if smaller else 3)) for k in kernel * 2]
        return {"kernel_shape": kernel, "strides": self.rng.integers(1, 3, len(kernel)).tolist(), "pads": pads}

    def _window(self, name, value):
        if value.ndim not in (3, 4):
            return None
        attributes, channels = self._sizes(value, smaller=False), value.shape[1]
        groups = int(self.rng.choice([1, 1, channels]))
        outputs = groups * int(self.rng.integers(1, 4))
        bias = [weights(self.rng, outputs)] if self.rng.random() < 0.5 else []
        return self.add(
            "Conv",
            name,
            weights(self.rng, outputs, channels // groups, *attributes["kernel_shape"]),
            *bias,
            group=groups,
            **attributes,
        )

    def _windowed_pool(self, name, value):
        if value.ndim not in (3, 4):
            return None
        if self.rng.random() < 0.5:
            return self.add("MaxPool", name, **self._sizes(value, smaller=True))
        return self.add("AveragePool", name, count_include_pad=int(self.rng.integers(2)), **self._sizes(value, smaller=True))

    def _function(self, name, value):
        return self.add(
            str(
                self.rng.choice(
                    [
                        "Relu",
                        "Sigmoid",
                        "Tanh",
                        "LeakyRelu",
                        "HardSigmoid",
                        "Elu",
                        "Softplus",
                        "Softsign",
                        "Erf",
                        "Abs",
                        "Selu",
                        "Neg",
                    ]
                )
            ),
            name,
        )

    def _written(self, name, value):
        forms = expressions.FORMS[str(self.rng.choice(list(expressions.FORMS)))]
        drawn = forms[self.rng.integers(len(forms))] if self.rng.random() < 0.6 else expressions.draw(self.rng)[0]
        last = self._emit(drawn, name, {})
        fits = last and last != name and self.values[last].shape == value.shape
        return last if fits and np.abs(self.values[last]).max() < _LARGEST else None

    def _emit(self, e, name, made):
        if not isinstance(e, tuple):
            if e == "x":
                return name
            constant = self.b.constant(np.float32(e))
            self.values[constant] = np.array(e, np.float32)
            return constant
        if e not in made:
            names = expressions._ATTRIBUTES.get(e[0], ())
            operands = [self._emit(operand, name, made) for operand in (e[1:2] if names else e[1:])]
            made[e] = self.add(e[0], *operands, **dict(zip(names, e[2:]))) if all(operands) else None
        return made[e]

    def _gate(self, name, value):
        source = self.add("GlobalAveragePool", name) if value.ndim > 2 and self.rng.random() < 0.4 else name
        gate = source and self.add(str(self.rng.choice(["Sigmoid", "Tanh", "Relu", "HardSigmoid"])), source)
        return gate and self.add("Mul", name, gate)

    def _other(self, name, value):
        return str(self.rng.choice([other for other in self.others if self._fits(self.values[other], value)] or [name]))

    def _extreme(self, name, value):
        return self.add(str(self.rng.choice(["Min", "Max"])), name, self._other(name, value))

    def _choice(self, name, value):
        larger = self.add("Greater", name, np.array(self.rng.normal(), np.float32))
        return larger and self.add("Where", larger, name, self._other(name, value))


def _session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0].astype(float)


def _noisy(model, values, trial):
    """Returns the model with a random relative error of bfloat16's size in each of its float32 values."""
    noisy, nodes = onnx.ModelProto.FromString(model.SerializeToString()), []
    for node in noisy.graph.node:
        nodes.append(node)
        for place, name in enumerate(node.output):
            if name in values and values[name].dtype == np.float32:
                node.output[place] = f"{name} exact"
                nodes += [
                    helper.make_node(
                        "RandomUniformLike",
                        [f"{name} exact"],
                        [f"{name} noise"],
                        low=1 - _NOISE,
                        high=1 + _NOISE,
                        seed=float(1000 * trial + len(nodes)),
                    ),
                    helper.make_node("Mul", [f"{name} exact", f"{name} noise"], [name]),
                ]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del noisy.graph.node[:]
    noisy.graph.node.extend(nodes)
    return _session(noisy)


def _golden(network, x):
    samples = x.reshape(1, -1) if network.origin.batch == 0 else x
    return network.origin.output.finish(run_samples(network, None, samples, simulator="golden").logits)


def check(rng, folder):
    """Draws a graph. Returns "refused", or "accepted" after checking the golden model for several batch sizes and that samples
    are independent."""
    samples, first = int(rng.choice([2, 3, 4])), str(rng.choice(["open", "open", "open", "fixed"]))
    graph = MixedGraph(rng, samples, first, safe=rng.random() < 0.8)
    with np.errstate(all="ignore"):
        graph.finish(int(rng.integers(2, 13)))
    used = {name for node in graph.b.nodes for name in node.input}
    graph.b.constants = [constant for constant in graph.b.constants if constant.name in used]
    path = graph.b.save(folder)
    try:
        network = load_network(path)
    except ModelError:
        return "refused"
    model = onnx.load(path)
    exact, noisy = _session(model), [_noisy(model, graph.values, trial + 1) for trial in range(6)]
    for count in [samples] if first == "fixed" else [1, samples, samples + 2]:
        x = graph.sample(count)
        try:
            want = exact(x)
        except Exception as error:  # a batch that a Reshape fixes
            assert "onnxruntime" in type(error).__module__ and count != samples, error
            continue
        got = _golden(network, x).reshape(want.shape)
        tried = np.array([want, *(noisy[trial % len(noisy)](x) for trial in range(_TRIALS))])
        known = np.isfinite(tried).all(axis=0) & (np.abs(tried) < 1e37).all(axis=0)
        with np.errstate(all="ignore"):
            scale = np.abs(np.where(known, want, 0)).max(initial=0)
            allowed = 4 * (tried.max(axis=0) - tried.min(axis=0)) + 2.0**-6 * np.abs(want) + 1e-5 * scale + 1e-30
            wrong = known & ~(np.abs(got - want) <= allowed)
        assert not wrong.any(), (path, x[:2], got[wrong][:4], want[wrong][:4], allowed[wrong][:4])
        if network.origin.batch is None:
            alone = np.concatenate([_golden(network, one[None]) for one in x])
            np.testing.assert_array_equal(alone.reshape(want.shape), got)
    return "accepted"
