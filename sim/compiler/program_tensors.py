"""The tensors of a network or a step that the host writes or reads."""

from functools import partial

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..golden.arithmetic import bfloat16
from ..golden.ring import held_by
from ..golden.steps import segments_of, whole_of_segments
from ..ir.tiles import dense
from .host_tensors import HostTensor
from .passes.ungrouping import packed
from .program import factor

__all__ = ["tensors_of"]


def tensors_of(lowered, constants, cores):
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
        first = constants.place(tensor)
        tensors[factor(name)] = HostTensor(Region.MODEL, slice(first, first + constants.n), pack)
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

    return HostTensor(Region.INPUT, slice(first, first + size), pack)


def _tensor(lowered, matrix):
    name = matrix.name
    shape, stored = (step.tensors[name].shape for step in (lowered.given, lowered.step))
    groups = lowered.folded.groups.get(name)

    def pack(values):
        if groups:
            values = dense(values.reshape(shape), groups)
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

    return HostTensor(matrix.region, matrix.vectors, pack, unpack, divided=True)


def _factor(matrix, value):
    return matrix.pack(np.full((1, 1, 1), value, bfloat16))
