"""The program of a training step or a network, from a schedule."""

from dataclasses import astuple, replace
from functools import partial
from math import prod

import numpy as np

from amaranth_tpu.hw.spec.isa import Region, WeightFormat

from ..golden.arithmetic import bfloat16
from ..golden.ring import held_by
from ..golden.steps import segments_of, whole_of_segments
from ..ir.stage import reads
from .codegen.dead_stores import scratch_vectors
from .host_tensors import HostTensor, host_tensor
from .image import Code, encoded, packed_tiles, program_of
from .passes.ungrouping import packed, unpacked
from .program import cost_of, factor

__all__ = ["code_of", "make_step_program", "program_of_code"]


def make_step_program(lowered, constants, config, cores, schedule):
    """Returns the :class:`sim.compiler.program.Program` of a step with the instructions of a :class:`.Schedule`. Its `memory` is
    `lowered`."""
    others = {"useful_macs": lowered.geometry.batch * _useful_macs(lowered.given), "emit": partial(tuple, schedule.ops)}
    code = code_of(schedule, lowered, constants, config)
    return program_of_code(code, lowered, constants, config, cores, memory=lowered, **others)


def code_of(schedule, lowered, constants, config, names=()):
    """Returns the :class:`.Code` of a :class:`.Schedule`, with the jobs of the stages `names`."""
    image, blocks, ops = packed_tiles(schedule.ops, schedule.image, constants.weights, config)
    stored = sum(WeightFormat(code).vectors(config.n, count) for count, code in blocks)
    vectors = 0 if lowered.step.state else lowered.sizes[Region.INPUT] + lowered.sizes[Region.MODEL] + stored
    cost = cost_of(schedule.ops, config, schedule.cycles, vectors * config.beats_per_vector)
    plans, scratch = tuple(schedule.plans.get(name, "") for name in names), scratch_vectors(schedule.ops, lowered, config)
    return Code(encoded(ops, config), image, blocks, schedule.places, astuple(schedule.order), plans, cost, scratch)


def program_of_code(code, lowered, constants, config, cores=1, **others):
    """Returns the :class:`sim.compiler.program.Program` of a :class:`.Code`. Its tensors are from :func:`step_tensors`."""
    sizes = lowered.sizes | {Region.SCRATCH: code.scratch}
    others |= {"batch": lowered.geometry.batch, "cores": cores, "tensors": step_tensors(lowered, constants, config, cores)}
    return program_of(code.words, code.cost, constants.pack(code.image, code.blocks), sizes, config, **others)


def step_tensors(lowered, constants, config, cores):
    """Returns {name: HostTensor} of a step or a network. Tensors have the names and shapes of :mod:`sim.golden.steps`, (batch or
    1, height, width, channels). `factor(name)` is a factor of the step."""
    step, tensors = lowered.given, {name: _input(lowered, name) for name in lowered.given.inputs}
    shared = {name: step.masters[name] for name in step.parameters if step.is_shared(name)}
    exchanged = {stage.start for stage in step.stages if stage.ring == "all_reduce" or stage.ring == "all_reduce_segments"}
    for name in (step.targets, step.counted, *step.outputs, *step.state, *exchanged, *shared):
        if name and name not in lowered.divided:
            tensors[name] = _tensor(lowered, lowered.matrix(name))
    for name, master in shared.items():
        for one in (master, *step.slots[name].values()):
            tensors[one] = _divided(lowered, lowered.matrix(one), name, cores)
    for name, tensor in step.factors.items():
        pack = partial(_factor, lowered.matrix(tensor, "number"))
        tensors[factor(name)] = host_tensor(Region.MODEL, constants.place(tensor), config.n, pack)
    return tensors


def _input(lowered, name):
    """Returns the tensor of an input, which the host may store several times."""
    matrices = {one: lowered.matrix(one) for one, *_ in lowered.folded.inputs[name]}
    first = min((one.vector for one in matrices.values()), default=0)
    size = max((one.vector + one.size for one in matrices.values()), default=0) - first
    bytes_of_vector = 2 * lowered.geometry.n

    def pack(values):
        data = bytearray(size * bytes_of_vector)
        for one, made in lowered.folded.gathered(name, values):
            start = (matrices[one].vector - first) * bytes_of_vector
            data[start : start + matrices[one].size * bytes_of_vector] = matrices[one].pack(made)
        return bytes(data)

    return host_tensor(Region.INPUT, first, size, pack)


def _tensor(lowered, matrix):
    name = matrix.name
    shape, stored, groups = (
        lowered.given.tensors[name].shape,
        lowered.step.tensors[name].shape,
        lowered.ungrouped.groups.get(name),
    )

    def pack(values):
        if groups:
            values = unpacked(values.reshape(shape), groups)
        if matrix.form == "samples":  # a factor of one channel is stored in all lanes
            return matrix.pack(np.broadcast_to(values, (*values.shape[:-1], stored[-1])))
        return matrix.pack(values.reshape(stored))

    def unpack(data):
        values = matrix.unpack(data, stored)
        return (packed(values, groups) if groups else values).reshape(-1, *shape)

    return HostTensor(matrix.region, matrix.vectors, pack, unpack)


def _divided(lowered, matrix, whole, cores):
    """Returns a tensor that is divided among the cores: each has a segment of the outputs. The host has the whole tensor, with
    the shape of the parameter `whole`."""
    shape, channels = lowered.given.tensors[whole].shape, lowered.step.tensors[whole].shape
    own = lowered.step.tensors[matrix.name].shape

    def pack(values):
        parts = segments_of(values.reshape(channels), cores, own[-1])
        return [matrix.pack(parts[held_by(rank, cores)]) for rank in range(cores)]

    def unpack(data):
        return whole_of_segments([matrix.unpack(one, own) for one in data], channels[-1]).reshape(-1, *shape)

    return replace(host_tensor(matrix.region, matrix.vector, matrix.size, pack, unpack), divided=True)


def _factor(matrix, value):
    return matrix.pack(np.full((1, 1, 1), value, bfloat16))


def _useful_macs(step):
    """Returns the multiplications that a :class:`sim.ir.graph.Graph` needs for one sample: products with parameters, products
    of two results, and gradients. Padding, factors, constants and sums of biases do not count."""
    terms = {(stage.sums, place): (stage, term) for stage in step.stages for place, term in enumerate(stage.terms)}
    return int(sum(_of_term(step, stage, term) for stage, term in terms.values()))


def _of_term(step, stage, term):
    source, weights, output = (step.tensors[name] for name in (term.source, term.weights, stage.output))
    if {term.source, term.weights} & step.constants.keys() or step.is_diagonal(term, (*stage.size, output.channels)):
        return 0
    if not output.samples:  # the gradient of weights; the vectors of all positions meet a source of one position
        positions = weights.shape[:2] if source.shape[:2] != (1, 1) else (1, 1)
        each = output.width * output.channels * (weights.height * weights.width // prod(positions))
        return reads(term, source, positions).sum() * each if weights.samples else 0
    if weights.samples:
        return prod(source.shape[:2] if term.transposed else stage.size) * source.channels * output.channels
    return reads(term, source, stage.size).sum() * weights.width * weights.channels
