"""A builder of ONNX models node by node, and comparisons with onnxruntime."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.ir.errors import ModelError
from second_network import run_stage


def integers(rng, *shape, limit=4):
    return rng.integers(-limit, limit + 1, shape).astype(np.float32)


def weights(rng, *shape):
    """Returns normally distributed numbers, scaled so that sums over all but the first axis keep the operands' size."""
    return rng.normal(0, max(1, np.prod(shape[1:])) ** -0.5, shape).astype(np.float32)


class Builder:
    """A builder of an ONNX graph, node by node; each call returns the name of the output."""

    def __init__(self, shape, opset=13, kind=TensorProto.FLOAT):
        self.nodes, self.constants, self.last = [], [], "x"
        self.inputs = [helper.make_tensor_value_info("x", kind, shape)]
        self.opset = opset

    def constant(self, array, name=None):
        array = np.asarray(array)
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def __call__(self, operator, *inputs, name=None, **attributes):
        """Adds a node. An input `...` stands for the last node's output, which is also the first input by default."""
        inputs = [self.constant(i) if isinstance(i, np.ndarray) else i for i in inputs]
        inputs = [self.last if i is ... else i for i in inputs] if ... in inputs else [self.last, *inputs]
        return self.node(operator, inputs, name=name, **attributes)

    def node(self, operator, inputs, name=None, **attributes):
        self.last = f"t{len(self.nodes)}"
        inputs = [self.constant(i) if isinstance(i, np.ndarray) else i for i in inputs]
        self.nodes.append(helper.make_node(operator, inputs, [self.last], name or f"{operator}_{len(self.nodes)}", **attributes))
        return self.last

    def model(self, outputs=None, ir_version=8, kinds=(), **options):
        """Returns the model. `kinds` are the types of the outputs. Default: float32."""
        outputs = [
            helper.make_tensor_value_info(o, kind, None)
            for o, kind in itertools.zip_longest(outputs or [self.last], kinds, fillvalue=TensorProto.FLOAT)
        ]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("ai.onnx.ml", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, **options)

    def save(self, folder, **options):
        path = folder / "model.onnx"
        path.write_bytes(self.model(**options).SerializeToString())
        return path


def reference(path, x):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # more threads would wait for each other on a busy machine
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def refused(path, *words):
    with pytest.raises(ModelError) as caught:
        load_network(path)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    for word in words:
        assert word in message, message
    assert caught.value.__cause__ is None


def close(got, want, tolerance=0.02, scale=None):
    """Checks that the root mean square error is below `tolerance` times the root mean square of `want` or `scale`, and the
    largest error below ten times that."""
    got, want = np.asarray(got, np.float32), np.asarray(want, np.float32)
    scale = max(np.sqrt((want**2).mean()), scale or 0) + 1e-6
    error = np.abs(got - want)
    mean, most = np.sqrt((error**2).mean()) / scale, error.max() / scale
    assert got.shape == want.shape and mean < tolerance and most < 10 * tolerance, (got.shape, want.shape, mean, most)


def values_of(path, x, names):
    """Returns {name: array} of onnxruntime's values of the tensors `names` for input `x`."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = onnx.load(path)
    there = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, {session.get_inputs()[0].name: x})))


def _size_of_sums(graph, tensors, term):
    """Returns the root mean square of a term's sums if their products were independent. Rounding errors are proportional to it,
    even where products cancel or ReLU zeroes most results."""
    weights = 0 if graph.is_product(term) else graph.constants[term.weights].astype(np.float32)
    weights, values = np.square(weights).sum(axis=(0, 1)) if np.ndim(weights) else np.zeros(1), tensors[term.source]
    return np.sqrt(np.square(values.astype(np.float32)).mean() * max(0.09, weights.max(initial=0)))


def check_graph(path, x, stages=None, softmax=False, tolerance=0.02, **options):
    """Compares the golden model of a model's graph with onnxruntime, stage by stage. After each stage that corresponds to a
    tensor of the model, the next stages continue from onnxruntime's values, so that rounding errors do not accumulate."""
    graph = load_network(path, **options)
    assert graph.softmax == softmax
    assert stages is None or len(graph.stages) == stages, [stage.name for stage in graph.stages]
    for stage in graph.stages:
        assert all(graph.is_product(term) or graph.constants[term.weights].dtype == bfloat16 for term in stage.terms)
        bias = graph.constants.get(stage.start)
        assert bias is None or bias.dtype == np.float32 and not np.signbit(bias[bias == 0]).any()
    wanted = reference(path, x).reshape(len(x), -1)
    known = values_of(path, x, [stage.value for stage in graph.stages if stage.value])
    samples = x.astype(np.float32).reshape(len(x), -1)
    tensors = {graph.input: round_bfloat16(graph.arrange_input(samples))}
    unknown, limit = 0, 1
    for stage in graph.stages:
        unknown += 2
        result = run_stage(graph, stage, tensors, binary32=graph.outputs == (stage.output,))
        whole = tensors.setdefault(stage.output, np.full((len(x), *graph.tensors[stage.output].shape), np.nan, result.dtype))
        (top, left), (height, width) = stage.origin, stage.result_size
        whole[:, top : top + height, left : left + width] = result
        if stage.value:
            value = known[stage.value]
            value = (value if value.ndim == 4 else value.reshape(*value.shape, 1, 1)).transpose(0, 2, 3, 1)
            scale = max(_size_of_sums(graph, tensors, term) for term in stage.terms)
            limit, unknown = unknown - 1, 0
            close(whole, value, tolerance * limit, scale)
            if graph.outputs != (stage.output,):
                tensors[stage.output] = round_bfloat16(value)
    results = graph.arrange_output(tensors)
    if softmax:
        results = np.exp(results - results.max(1, keepdims=True))
        results /= results.sum(1, keepdims=True)
    scale = max(0.1, *(_size_of_sums(graph, tensors, term) for term in stage.terms))
    close(results, wanted, tolerance * max(2, unknown + 1, limit), scale)
    return graph
