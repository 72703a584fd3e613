"""Networks of :class:`sim.ir.graph.Graph` with random parameters, for tests of gradients."""

import numpy as np

from amaranth_tpu.sim.autodiff.batch_norms import with_batch_norm
from amaranth_tpu.sim.autodiff.stages import identity
from amaranth_tpu.sim.functions.functions import RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16, round_bfloat16
from amaranth_tpu.sim.ir.graph import Graph
from amaranth_tpu.sim.ir.stage import ChannelNorm, Norm, Stage, Term


class Builder(Graph):
    """A network with random parameters."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng

    def weights(self, name, positions, inputs, outputs, spread=None):
        """Adds weights; returns their name."""
        values = self.rng.normal(0, spread or (2 / (positions * inputs)) ** 0.5, (positions, inputs, outputs))
        return self.add_parameter(name, round_bfloat16(values).astype(np.float32))

    def bias(self, name, channels, centre=0.0):
        """Adds a bias or a gain; returns its name."""
        return self.add_parameter(name, (centre + self.rng.normal(0, 0.1, (1, 1, channels))).astype(np.float32), decays=False)

    def stage(self, name, channels, *terms, size=(1, 1), wide=False, **fields):
        """Adds a stage; returns its output."""
        return self.add_stage(Stage(name, terms, size, **fields), channels, wide=wide)

    def conv(self, name, source, channels, *, kernel=1, stride=1, dilation=1, padding=0, groups=1, wide=False, **fields):
        """Adds a convolution with weights and bias; returns its output."""
        tensor = self.tensors[source]
        need = (kernel - 1) * dilation + 1
        size = tuple((have + 2 * padding - need) // stride + 1 for have in (tensor.height, tensor.width))
        weights = self.weights(f"{name}.weights", kernel**2, tensor.channels // groups, channels)
        pairs = ((value, value) for value in (kernel, stride, dilation, padding))
        term = Term(source, weights, *pairs, groups)
        return self.stage(name, channels, term, size=size, start=self.bias(f"{name}.bias", channels), wide=wide, **fields)


def normalized_convolutions(rng, batch, widths=(5, 6), size=4):
    """Returns a network of convolutions that are normalized by the statistics of `batch` samples."""
    network = Builder(rng)
    x = network.add_input("x", (size, size, 2))
    for number, width in enumerate(widths):
        x = network.conv(f"conv{number}", x, width, kernel=3, padding=1)
        x = network.conv(f"norm{number}", x, width, groups=width, function=RELU)
    network.output = network.conv("y", x, 3, kernel=size, wide=True)
    for number, width in enumerate(widths):
        norm = ChannelNorm(1e-5, batch, f"mean{number}", f"variance{number}")
        network = with_batch_norm(network, f"norm{number}.weights", norm, rng.normal(0, 0.1, width), rng.uniform(0.5, 2, width))
    return network


def first_slots(step):
    """Returns the slots of SGD before the first step, {tensor: zeros}."""
    tensors = (step.tensors[name] for slots in step.slots.values() for name in slots.values())
    return {one.name: np.zeros((1, *one.shape), bfloat16) for one in tensors}


def _attention(network, name, source, width, heads, mask):
    """Adds causal self-attention over the positions of a tensor; returns one term per head for the output's sum."""
    tokens, each, terms = network.tensors[source].width, width // heads, []
    for head in range(heads):
        at = f"{name}.{head}"
        q, k, v = (network.conv(f"{at}.{kind}", source, each) for kind in "qkv")
        scale = network.add_constant(f"{at}.scale", np.full((1, 1, 1), each**-0.5, np.float32).astype(bfloat16))
        q = network.stage(f"{at}.scaled", each, Term(q, scale, groups=each), size=(1, tokens))
        share = network.stage(f"{at}.share", tokens, Term(q, k, swapped=True), size=(1, tokens), start=mask, softmax=True)
        o = network.stage(f"{at}.o", each, Term(share, v), size=(1, tokens))
        terms.append(Term(o, network.weights(f"{at}.out", 1, each, width)))
    return terms


def transformer(rng, tokens=6, width=16, heads=2, letters=7, layers=1, centred=True):
    """Returns a causal language model: tied embedding, positions, norms, attention, GELU, residual sums."""
    network, size = Builder(rng), (1, tokens)
    network.add_input("tokens", (1, tokens, letters))
    mask = np.where(np.tril(np.ones((tokens, tokens))) > 0, 0, -np.inf).astype(np.float32)[None]
    mask = network.add_constant("causal", mask)
    here = network.add_constant("here", np.eye(tokens, dtype=np.float32)[None].astype(bfloat16))
    embedding = network.weights("embedding", 1, letters, width, 0.5)
    terms = Term("tokens", embedding), Term(here, network.weights("position", 1, tokens, width, 0.5))
    x = network.stage("x", width, *terms, size=size)

    def normed(name, source):
        network.stage(f"{name}.norm", width, identity(network, source), size=size, norm=Norm(1e-5, centred))
        gain = Term(f"{name}.norm", network.bias(f"{name}.gain", width, 1.0), groups=width)
        return network.stage(name, width, gain, size=size, start=network.bias(f"{name}.offset", width))

    for layer in range(layers):
        heads_of = _attention(network, f"{layer}", normed(f"{layer}.z1", x), width, heads, mask)
        x = network.stage(
            f"{layer}.x1", width, identity(network, x), *heads_of, size=size, start=network.bias(f"{layer}.b1", width)
        )
        f = network.conv(f"{layer}.f", normed(f"{layer}.z2", x), 2 * width, function=Function("gelu"))
        down = Term(f, network.weights(f"{layer}.down", 1, 2 * width, width))
        x = network.stage(f"{layer}.x2", width, identity(network, x), down, size=size, start=network.bias(f"{layer}.b2", width))
    term = Term(normed("last", x), embedding, swapped=True)
    network.output = network.stage("logits", letters, term, size=size, wide=True)
    return network
