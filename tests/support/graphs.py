"""Random graphs of stages, for tests of the compiler and of the core."""

from collections import Counter

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.timing.units import WEIGHTS
from amaranth_tpu.sim.functions.functions import NONE, RELU
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.golden.machines import machine_of
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.stage import Pool, Tensor, span
from second_network import run_stages
from stage_graphs import GivenStage, GivenTerm, linked

#: The core on which the shipped networks run; tests share its build.
SHARED = Config(n=8, table_lanes=2, softmax=False)


def random_values(random, shape, scale=1.0):
    """Returns normally distributed bfloat16 of `shape`, multiplied by `scale`."""
    return round_bfloat16((random.normal(size=shape) * scale).astype(np.float32))


def _axis(random, have, most_kernel=3):
    """Returns a random window along an axis of `have` elements: `(count, kernel, stride, dilation, padding)`."""
    kernel, stride, dilation = (int(random.integers(1, high + 1)) for high in (min(most_kernel, have), 2, 2))
    padding = int(random.integers(0, kernel))
    reach = have + padding + int(random.integers(0, kernel))
    if span(1, stride, kernel, dilation) > reach:
        kernel, dilation = 1, 1
    return (reach - span(1, stride, kernel, dilation)) // stride + 1, kernel, stride, dilation, padding


def _convolution(random, source, channels):
    axes = [_axis(random, size) for size in (source.height, source.width)]
    size, kernel, stride, dilation, padding = zip(*axes)
    groups = int(random.choice([g for g in (1, 1, 1, 2, 4) if source.channels % g == channels % g == 0]))
    inputs = source.channels // groups
    weights = random_values(random, (*kernel, inputs, channels), (inputs * np.prod(kernel)) ** -0.5)
    return GivenTerm(source.name, weights, stride, dilation, padding, groups), size


def _pool(random, size):
    axes = [_axis(random, have) for have in size]
    counts, window, stride, dilation, padding = zip(*axes)
    # A window that covers only padding would have no maximum.
    for count, w, s, d, p, have in zip(counts, window, stride, dilation, padding, size):
        if any(all(not 0 <= i * s - p + k * d < have for k in range(w)) for i in range(count)):
            return None
    return Pool(window, counts, stride, dilation, padding)


def _joined(random, source, term, size, channels):
    if random.random() < 0.6 or any(
        span(count, stride, 1, 1) > have for count, stride, have in zip(size, term.stride, (source.height, source.width))
    ):
        return (term,)
    return term, GivenTerm(source.name, random_values(random, (1, 1, source.channels, channels), 0.3), term.stride)


def random_graph(random, *, stages=3, channels=9, size=9, pooling=True, split=True, functions=(NONE, RELU)):
    """Returns a random chain of stages with branches that are summed, ending in a dense layer. If `split`, two stages may write
    halves of one tensor."""
    x = source = Tensor("x", int(random.integers(1, channels)), int(random.integers(1, size)), int(random.integers(1, size)))
    made = []
    for number in range(stages):
        outputs = int(random.integers(1, channels)) * (4 if random.random() < 0.2 else 1)
        term, area = _convolution(random, source, outputs)
        terms = _joined(random, source, term, area, outputs)
        pool = _pool(random, area) if pooling and random.random() < 0.5 else None
        bias = random.normal(size=outputs).astype(np.float32) if random.random() < 0.7 else None
        name = f"t{number}"
        common = {"output": name, "bias": bias, "function": functions[random.integers(len(functions))]}
        if split and pool is None and area[1] > 1 and random.random() < 0.3:
            # Two halves, each written by its own stage.
            left = area[1] // 2
            for part, (first, count) in enumerate(((0, left), (left, area[1] - left))):
                moved = tuple(
                    GivenTerm(
                        t.source, t.weights, t.stride, t.dilation, (t.padding[0], t.padding[1] - first * t.stride[1]), t.groups
                    )
                    for t in terms
                )
                made.append(GivenStage(f"{name}.{part}", terms=moved, size=(area[0], count), origin=(0, first), **common))
        else:
            made.append(GivenStage(name, terms=terms, size=area, pool=pool, **common))
            area = made[-1].result_size
        source = Tensor(name, outputs, *area)
    outputs = int(random.integers(1, 2 * channels))
    weights = random_values(random, (source.height, source.width, source.channels, outputs), 0.2)
    made.append(GivenStage("dense", "y", (GivenTerm(source.name, weights),), bias=random.normal(size=outputs).astype(np.float32)))
    return linked("random", x, made)


def execute(program, config, samples, random):
    """Returns a program's results on the C model or, in one of ten draws, on the Python model. Memory whose contents are
    undefined has noise, often NaN."""

    def bits(shape):
        return np.where(random.random(shape) < 0.2, 0xFFFF, random.integers(0, 1 << 16, shape)).astype("<u2")

    def noise(size):
        return bytearray(bits(-(-size // 2)).tobytes())[:size]

    regions = {
        Region.MODEL: bytearray(program.model),
        Region.INPUT: bytearray(program.pack_input(samples)),
        Region.OUTPUT: noise(program.sizes[Region.OUTPUT]),
        Region.SCRATCH: noise(program.sizes[Region.SCRATCH]),
    }
    machine = (Machine if random.random() < 0.1 else machine_of)(config, regions)
    machine.buffer[:] = bits(machine.buffer.shape)
    machine.run()
    return program.unpack_output(regions[Region.OUTPUT])[: len(samples)]


def check_order(program):
    issued = Counter()
    for op in program.ops:
        assert all(issued[unit] >= need for unit, need in op.waits if unit != WEIGHTS), op.opcode
        issued[op.unit] += 1


def check(graph, config, batch, random, samples=None):
    x = random_values(random, (samples or batch, graph.input_size))
    program = compile_network(graph, config, batch)
    for op in program.ops:  # or the program of the first stages alone could not be told from the others'
        assert op.opcode is not Opcode.LOAD_WEIGHTS or [*op.parts] == sorted(op.parts, key=lambda part: part[0])
    check_order(program)
    read = {name for stage in graph.stages for name in stage.operands} | {*graph.outputs}
    if all(stage.output in read for stage in graph.stages):
        assert program.useful_macs <= config.n**2 * program.cost.compute_cycles  # what the array can do in these cycles
    got, want = execute(program, config, x, random), run_network(graph, x)
    second = graph.arrange_output(run_stages(graph, x))
    for other in (want, second):
        assert np.array_equal(got.view(np.uint32), other.view(np.uint32))
    return program
