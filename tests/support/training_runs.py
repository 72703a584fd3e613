"""Small networks, and samples of separable classes, for tests of training."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from safetensors import safe_open

from amaranth_tpu.sim.autodiff.initialize import initialize
from amaranth_tpu.sim.autodiff.trainable_parameters import with_parameters
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.golden.training import initial_state
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.ir.optimizers import Sgd
from amaranth_tpu.sim.trainer.golden_training import Training
from amaranth_tpu.sim.trainer.plan import Plan
from amaranth_tpu.sim.trainer.samples import LabelledSamples
from amaranth_tpu.sim.trainer.schedules import parse_schedule
from graphs import random_values

INPUTS, HIDDEN, CLASSES = 10, 8, 4
#: Seed of samples and weights where a test expects a lower loss or an accuracy. No bound holds for every data set.
FIXED = 6


def clusters(rng, count, inputs=INPUTS, classes=CLASSES):
    """Returns samples, float32 (count, inputs), and labels, int64 (count,): normal noise around a centre for each class."""
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(7).normal(0, 1.5, (classes, inputs))
    return (centres[labels] + rng.normal(0, 0.7, (count, inputs))).astype(np.float32), labels


def dense_network(rng):
    layers = [
        ("hidden", random_values(rng, (INPUTS, HIDDEN), 0.4), np.zeros(HIDDEN, np.float32), "relu"),
        ("output", random_values(rng, (HIDDEN, CLASSES), 0.4), np.zeros(CLASSES, np.float32), "none"),
    ]
    return with_parameters(dense_chain("small", layers))


def new_training(rng, network=None, *, count=50, validation=0, inputs=INPUTS, optimizer=None, **plan):
    network = network or dense_network(np.random.default_rng(5))
    optimizer = optimizer or Sgd()
    rows, labels = clusters(rng, count + validation, inputs)
    samples = LabelledSamples.checked(rows, labels, CLASSES)
    plan = {
        "learning_rate": 0.05,
        "schedule": parse_schedule("fifths"),
        "batch_size": 8,
        "epochs": 3,
        "dropout": Dropout(0),
    } | plan
    held = samples.chosen(np.arange(count, count + validation)) if validation else None
    state = initial_state(network, optimizer, initialize(network, 3))
    return Training(network, Plan(optimizer=optimizer, **plan), samples.chosen(np.arange(count)), held, state)


def write_dense_model(path, rng, last=None):
    """Writes an ONNX file of two dense layers, followed by operator `last` if given. Returns its path."""
    shapes = {"first.weight": (INPUTS, HIDDEN), "first.bias": (HIDDEN,)}
    shapes |= {"second.weight": (HIDDEN, CLASSES), "second.bias": (CLASSES,)}
    tensors = [numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["x", "first.weight", "first.bias"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "second.weight", "second.bias"], ["y"], name="second"),
    ]
    if last:
        nodes.append(helper.make_node(last, ["y"], ["z"], name="last"))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", INPUTS])],
        [helper.make_tensor_value_info("z" if last else "y", TensorProto.FLOAT, ["batch", CLASSES])],
        tensors,
    )
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8).SerializeToString())
    return path


def write_samples(folder, rng, count=60, name="train"):
    """Writes `count` samples of :func:`clusters` and their labels as `.npy` files. Returns both paths."""
    rows, labels = clusters(rng, count)
    paths = folder / f"{name}.npy", folder / f"{name}-labels.npy"
    np.save(paths[0], rows)
    np.save(paths[1], labels)
    return paths


def parameters(path):
    """Returns {name: array} of the master weights in a checkpoint file."""
    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys() if name.startswith("master/")}  # noqa: SIM118
