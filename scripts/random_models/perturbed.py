"""The effect of bfloat16 rounding on a model's outputs, measured: onnxruntime computes the model many times, with noise of one
unit in the last place of bfloat16 on each weight and each intermediate value."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from amaranth_tpu.sim.check.onnxruntime_import import import_onnxruntime

from .recurrence import STATES, in_small_operators

__all__ = ["session", "Perturbed", "first_deviation"]

_NOISE = 2.0**-8  # relative
_DRAWS = (6, 60)  # the second number of draws is only needed if the first ones give too small a spread
_TIMES = 4
_OWN = 2.0**-22  # onnxruntime's own error, relative to the largest value of an output
_FLUSHED = 2.0**-120  # the core flushes subnormals
_EXACT = ("Resize", "Upsample", "Pow")  # their parameters have no noise


def session(model):
    """Returns a function from inputs {name: array} to the list of outputs."""
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feeds: made.run(None, feeds)


class Perturbed:
    """A model with noise on each floating-point input and constant, and on each result of a node. Noise of an input stands for
    rounded weights that a node implies, as in Resize. Recurrent layers are in small operators, so each gate has noise.

    Parameters
    ----------
    model : onnx.ModelProto
    feeds : dict
        Samples {input: array}.
    """

    def __init__(self, model, feeds):
        constants = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        nodes, self._feeds = _in_steps(model, constants, feeds), feeds
        model = _with(model, nodes, constants)
        made = [name for node in nodes for name in node.output if name]
        values = dict(zip(made, session(_with(model, nodes, outputs=made))(feeds)))
        exact = {name for node in nodes for name in node.input[1:] if node.op_type in _EXACT}
        given = constants | feeds
        noisy = {name: array for name, array in (given | values).items() if array.dtype == np.float32 and name not in exact}
        self._shapes = {f"{name} noise": array.shape for name, array in noisy.items()}
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in self._shapes.items()]
        times = {name: helper.make_node("Mul", [f"{name} exact", f"{name} noise"], [name]) for name in noisy}
        for name in given:
            if name in noisy:
                times[name].input[0], times[name].output[0] = name, f"{name} noisy"
        result = [times[name] for name in given if name in noisy]
        for node in nodes:
            node.input[:] = [f"{name} noisy" if name in given and name in noisy else name for name in node.input]
            names = list(node.output)
            node.output[:] = [f"{name} exact" if name in noisy else name for name in names]
            result += [node, *(times[name] for name in names if name in noisy)]
        self._session = session(_with(model, result, inputs=inputs))

    def __call__(self, rng):
        """Returns the outputs with random noise."""
        noise = {name: rng.uniform(1 - _NOISE, 1 + _NOISE, shape).astype(np.float32) for name, shape in self._shapes.items()}
        return self._session(self._feeds | noise)


def _with(model, nodes, constants=None, inputs=(), outputs=None):
    made, nodes = onnx.ModelProto.FromString(model.SerializeToString()), list(nodes)
    if constants is not None:
        del made.graph.initializer[:]
        made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    made.graph.input.extend(inputs)
    if outputs is not None:
        del made.graph.output[:]
        made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    return made


def _in_steps(model, constants, feeds):
    """Returns the model's nodes, with recurrent layers in small operators, whose constants are added to `constants`."""
    sequences = [node.input[0] for node in model.graph.node if node.op_type in STATES]
    given = session(_with(model, model.graph.node, outputs=sequences))(feeds) if sequences else ()
    steps = {name: len(array) for name, array in zip(sequences, given)}
    nodes = []
    for node in model.graph.node:
        if node.op_type in STATES:
            made, more = in_small_operators(node, steps[node.input[0]], constants)
            constants |= more
            nodes += made
        else:
            nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    return nodes


def first_deviation(model, feeds, results, seed=0):
    """Compares `results`, {output: array}, with onnxruntime. A difference may be a few times the spread of the results with
    noise. Returns a message of one line about the first larger difference, or None."""
    names = [one.name for one in model.graph.output]
    exact = session(model)(feeds)
    for name, right in zip(names, exact):
        if results[name].shape != right.shape:
            return f"output {name} has the shape {results[name].shape}, onnxruntime gives {right.shape}"
    noisy, drawn, rng = Perturbed(model, feeds), [exact], np.random.default_rng(seed)
    for draws in _DRAWS:
        drawn += [noisy(rng) for _ in range(draws)]
        message = _first(names, drawn, results)
        if message is None:
            return None
    return message


def _first(names, drawn, results):
    for place, name in enumerate(names):
        tried, got = np.stack([one[place] for one in drawn]), results[name]
        if tried.dtype.kind == "i":
            wrong = ~(tried == got).any(axis=0)
            allowed = np.zeros(got.shape)
        else:
            tried = tried.astype(np.float64)
            known = (np.abs(tried) < 1e37).all(axis=0)
            with np.errstate(all="ignore"):
                own = _OWN * np.abs(np.where(known, tried[0], 0)).max(initial=0) + _FLUSHED
                allowed = _TIMES * (tried.max(axis=0) - tried.min(axis=0)) + own
                wrong = known & ~(np.abs(got - tried[0]) <= allowed)
        if wrong.any():
            at = tuple(int(one) for one in np.argwhere(wrong)[0])
            return (
                f"output {name}: value {at} is {got[at]:.6g}, onnxruntime gives {tried[0][at]:.6g}, and rounding explains a "
                f"difference of {allowed[at]:.3g}; {int(wrong.sum())} of {wrong.size} values are wrong"
            )
    return None
