"""A network of dense layers for the CPU: its arrays for `firmware/cpu_network.c`, and a model of its integer results."""

from dataclasses import dataclass

import numpy as np

from amaranth_tpu.sim.golden.network import run_graph

__all__ = ["Layer", "CpuNetwork", "dense_layers"]

_SHIFT = 31


@dataclass(frozen=True, eq=False)
class Layer:
    """A dense layer: float32 `weights` (outputs, inputs) and `bias` (outputs,). If `relu` is True, a ReLU follows."""

    weights: np.ndarray
    bias: np.ndarray
    relu: bool


def dense_layers(graph):
    """Returns the dense layers of a :class:`sim.ir.graph.Graph`, as a list of :class:`Layer`.

    Raises
    ------
    ValueError
        If the graph is not a chain of dense layers, with at most a ReLU after each.
    """
    layers, source = [], graph.input
    for stage in graph.stages:
        [term, *others] = stage.terms
        plain = not (others or stage.pool or stage.softmax or stage.times or term.groups > 1) and term.source == source
        same = graph.tensors[source].shape[:2] == (1, 1) == term.kernel == stage.size
        if not (plain and same and stage.function.name in ("none", "relu")):
            raise ValueError(f"{stage.title or stage.name}: the CPU's part of the example takes dense layers with ReLU alone")
        weights = graph.constants[term.weights][0].astype(np.float32).T
        bias = np.zeros(len(weights), np.float32) if stage.start is None else graph.constants[stage.start].reshape(-1)
        layers.append(Layer(weights, bias, stage.function.name == "relu"))
        source = stage.output
    if graph.input_order is not None and (graph.input_order != np.arange(graph.input_size)).any():
        raise ValueError("the CPU's part of the example adds up in the order of a sample's values, which is not the core's here")
    if graph.output_order is not None:
        last = layers[-1]
        layers[-1] = Layer(last.weights[graph.output_order], last.bias[graph.output_order], last.relu)
    return layers


class CpuNetwork:
    """A network in two forms: in binary32, and quantised to 8-bit integers with scales that are calibrated on samples.

    Parameters
    ----------
    graph : Graph
        Chain of dense layers; see :func:`dense_layers`.
    samples : float32 (count, inputs)
        Calibration samples. The largest value of each layer on these samples defines its scale.
    """

    def __init__(self, graph, samples):
        self.layers = dense_layers(graph)
        _, kept = run_graph(graph, samples, keep=True)
        values = [samples, *(kept[stage.output].astype(np.float32) for stage in graph.stages)]
        steps = [max(np.abs(value).max(), 1e-30) / 127 for value in values]
        self._step = steps[0]
        self.weights, self.biases, self.multipliers = [], [], []
        for index, layer in enumerate(self.layers):
            step = max(np.abs(layer.weights).max(), 1e-30) / 127
            self.weights.append(np.round(layer.weights / step).astype(np.int8))
            self.biases.append(np.round(layer.bias / (step * steps[index])).astype(np.int32))
            self.multipliers.append(min(round(step * steps[index] / steps[index + 1] * (1 << _SHIFT)), (1 << _SHIFT) - 1))

    @property
    def macs(self):
        """Returns the number of multiply-accumulates per sample."""
        return sum(layer.weights.size for layer in self.layers)

    def quantise(self, samples):
        """Quantises samples. Returns int8 (count, inputs)."""
        return np.clip(np.round(samples / self._step), -127, 127).astype(np.int8)

    def run_integer(self, samples):
        """Computes the results that the firmware's function `run_integer` must give. Returns int32 (count, outputs) for int8
        samples (count, inputs)."""
        values = samples.astype(np.int64)
        for index, layer in enumerate(self.layers):
            sums = values @ self.weights[index].T.astype(np.int64) + self.biases[index]
            if layer.relu:
                sums = np.maximum(sums, 0)
            values = np.clip((sums * self.multipliers[index] + (1 << (_SHIFT - 1))) >> _SHIFT, -127, 127)
        return sums.astype(np.int32)

    def files(self, samples, digits):
        """Returns {name: bytes} of the files that the firmware is compiled with. The CPU processes the first `digits` samples."""
        widths = [self.layers[0].weights.shape[1], *(layer.weights.shape[0] for layer in self.layers)]
        tables = {
            "uint32_t cpu_widths[CPU_LAYERS + 1]": widths,
            "uint32_t cpu_relu[CPU_LAYERS]": [int(layer.relu) for layer in self.layers],
            "int32_t cpu_multipliers[CPU_LAYERS]": self.multipliers,
        }
        lines = ["#include <stdint.h>", "", f"#define CPU_LAYERS {len(self.layers)}u", f"#define CPU_WIDEST {max(widths)}u"]
        lines += [f"#define CPU_DIGITS {digits}u", ""]
        lines += [f"static const {name} = {{{', '.join(map(str, values))}}};" for name, values in tables.items()]
        arrays = ("float cpu_weights32", "float cpu_biases32", "int8_t cpu_weights8", "int32_t cpu_biases8")
        lines += [f"extern const {name}[];" for name in (*arrays, "float samples32", "int8_t samples8")]
        return {
            "cpu_data.h": ("\n".join(lines) + "\n").encode(),
            "weights32.bin": b"".join(layer.weights.astype("<f4").tobytes() for layer in self.layers),
            "biases32.bin": b"".join(layer.bias.astype("<f4").tobytes() for layer in self.layers),
            "weights8.bin": b"".join(weights.tobytes() for weights in self.weights),
            "biases8.bin": b"".join(bias.astype("<i4").tobytes() for bias in self.biases),
            "samples8.bin": self.quantise(samples).tobytes(),
        }
