"""Random graphs that can be trained, for tests of gradients and of steps on the core."""

import numpy as np

from amaranth_tpu.sim.functions.functions import NONE, RELU, Function
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.stage import Pool, Tensor, span
from graphs import random_values
from stage_graphs import GivenStage, GivenTerm, linked

#: Table functions: with tails, kinks, a jump, and not monotone.
TABLES = [*map(Function, ("tanh", "sigmoid", "leaky_relu", "gelu", "hard_swish", "softplus")), Function("clip", (-1, 2))]


def _convolution(random, source, channels, kernel, padding, stride=(1, 1), dilation=(1, 1)):
    weights = random_values(random, (*kernel, source.channels, channels), (2 / (source.channels * np.prod(kernel))) ** 0.5)
    return GivenTerm(source.name, weights, stride, dilation, padding)


def _shape(random, source):
    """Returns random kernel, padding before, stride, dilation and size of a convolution, each as (vertical, horizontal)."""
    axes = []
    for have in (source.height, source.width):
        kernel, stride = int(random.integers(1, min(3, have) + 1)), int(random.choice([1, 1, 2, 3]))
        dilation = 2 if kernel > 1 and span(1, 1, kernel, 2) <= have and random.random() < 0.3 else 1
        before, after = (int(random.integers(0, span(1, 1, kernel, dilation))) for _ in range(2))
        axes.append((kernel, before, stride, dilation, (have + before + after - span(1, 1, kernel, dilation)) // stride + 1))
    return zip(*axes)


def _pool(random, size):
    window = tuple(int(random.integers(1, min(3, have) + 1)) for have in size)
    counts = tuple(int(random.integers(max(1, have // side), have // side + 1)) for have, side in zip(size, window))
    return Pool(window, counts, window)


def _average(name, source, output, window):
    size = source.height // window[0], source.width // window[1]
    share = np.full((*window, 1, source.channels), 1 / np.prod(window), np.float32).astype(bfloat16)
    term = GivenTerm(source.name, share, window, groups=source.channels, fixed=True)
    return GivenStage(name, output, (term,), size), size


def _same(random, source):
    kernel = tuple(1 if have < 2 else int(random.choice([1, 3])) for have in (source.height, source.width))
    return _convolution(random, source, source.channels, kernel, tuple(side // 2 for side in kernel))


#: Kinds of the stages before the dense layers.
KINDS = ("plain", "pool", "average", "residual", "shortcut")


def random_trainable_graph(random, *, stages=3, channels=9, size=8, classes=None, kinds=KINDS, tables=0.0):
    """Returns a random classification network: convolutions of any stride and dilation with pooling, averages and residual sums,
    then dense layers.

    Parameters
    ----------
    random : numpy.random.Generator
    stages : int
        Number of stages before the dense layers.
    channels, size : int
        Exclusive limits of the channels and of the height and width of a tensor.
    classes : int or None
        Number of outputs. Default: random.
    kinds : tuple of str
        Kinds of stages to choose from. `"plain"`: a convolution. `"pool"`: a convolution with pooling. `"average"`: an average
        over windows with fixed weights. `"residual"`: a convolution plus its operand, which may be scaled. `"shortcut"`: a
        convolution plus, if the shapes match, a 1 x 1 convolution of the same operand. (): only dense layers.
    tables : float
        Probability that a stage's function is one of :data:`TABLES` instead of ReLU.
    """
    draw = random.integers
    x = source = Tensor("x", int(draw(1, channels)), *(int(draw(2, size)) if kinds else 1 for _ in range(2)))
    made = []

    def add(stage):
        made.append(stage)
        return Tensor(stage.output, stage.channels, *stage.result_size)

    def rectifier():
        return TABLES[int(draw(len(TABLES)))] if tables and random.random() < tables else RELU

    for number in range(stages if kinds else 0):
        kind = str(random.choice(kinds))
        name, function = f"t{number}", rectifier() if random.random() < 0.7 else NONE
        if kind == "average":
            window = tuple(int(draw(1, min(3, have) + 1)) for have in (source.height, source.width))
            source = add(_average(f"average{number}", source, name, window)[0])
        elif kind == "residual":
            terms = [_same(random, source)]
            scale = np.ones(source.channels) if random.random() < 0.5 else random.choice([0.5, 1, 2], source.channels)
            other = scale.astype(np.float32).astype(bfloat16).reshape(1, 1, 1, -1)
            terms.append(GivenTerm(source.name, other, groups=source.channels, fixed=True))
            bias = random.normal(size=source.channels).astype(np.float32)
            source = add(
                GivenStage(f"residual{number}", name, tuple(terms), (source.height, source.width), bias, function=function)
            )
        else:
            kernel, padding, stride, dilation, area = _shape(random, source)
            outputs = int(draw(1, channels))
            bias = random.normal(size=outputs).astype(np.float32) * np.float32(0.3) if random.random() < 0.8 else None
            pool = _pool(random, area) if kind == "pool" else None
            terms = (_convolution(random, source, outputs, kernel, padding, stride, dilation),)
            alike = area == tuple(-(-have // by) for have, by in zip((source.height, source.width), stride))
            if kind == "shortcut" and alike:
                terms += (_convolution(random, source, outputs, (1, 1), (0, 0), stride),)
            source = add(GivenStage(f"conv{number}", name, terms, area, bias, pool, function))
    widths = [int(draw(1, 2 * channels)) for _ in range(int(draw(0, 2)) + (0 if kinds else stages))]
    widths.append(classes or int(draw(2, channels)))
    for number, width in enumerate(widths):
        term = _convolution(random, source, width, (source.height, source.width), (0, 0))
        bias = random.normal(size=width).astype(np.float32) * np.float32(0.3) if random.random() < 0.8 else None
        last = number == len(widths) - 1
        function = NONE if last else rectifier()
        source = add(GivenStage(f"dense{number}", "y" if last else f"d{number}", (term,), bias=bias, function=function))
    return linked("random", x, made, softmax=True)
