"""The program of a network, from its graph: a step without state."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..golden.arithmetic import bfloat16
from .codegen.constant_image import Constants
from .compile_graph import lowered_step
from .lowering.network import network_of
from .order.search import Order, emitted_again, search
from .step_program import code_of, program_of_code

__all__ = ["NetworkMemory", "Network"]

_KEPT = 10_000  # instructions, about 10 MB, that a new program keeps; those of larger programs are emitted again if they are read


@dataclass(frozen=True, eq=False)
class NetworkMemory:
    """The memory map of a network's program, for :class:`sim.compiler.program.Program`."""

    network: Any  # the graph before the passes of :data:`sim.compiler.passes.pipeline.MAPPING`
    lowered: Any

    @property
    def wide(self):
        """Returns True if the output is binary32."""
        return self.lowered.matrix(self.network.output).wide

    def inputs(self, x):
        """Returns {name in `tensors`: values} for samples in the model's order: bfloat16, (up to batch, input size)."""
        x, batch = np.asarray(x), self.lowered.geometry.batch
        if x.dtype != bfloat16:
            raise TypeError(f"samples must be bfloat16, not {x.dtype}")
        if x.ndim != 2 or x.shape[1] != self.network.input_size or len(x) > batch:
            raise ValueError(f"samples must be of shape (up to {batch}, {self.network.input_size}), not {x.shape}")
        return self.network.arrange_inputs(x)

    def gathered(self, values):
        """Yields `(name, values)` of all tensors that the host stores, from the values of the inputs by name."""
        for name, one in values.items():
            yield from self.lowered.folded.gathered(name, one)

    def element(self, name, sample, y, x, channel):
        """Returns the place of a value of an input or of the output in its region, in values. Indices are integers or arrays."""
        matrix = self.lowered.matrix(name)
        row, n = sample * matrix.geometry.period + y * matrix.geometry.width + x, self.lowered.geometry.n
        place = matrix.vector * n + matrix.address(channel // n, row, matrix.halves - 1)
        return place // matrix.halves + channel % n

    def output_offset(self, sample, value):
        """Returns the byte offset, in region OUTPUT, of one result: value `value`, in the model's order, of sample `sample`."""
        for name, values, places in self.network.output_places():
            if value in values:
                places = (int(one[values == value][0]) for one in places)
                return int(self.element(name, sample, *places)) * (4 if self.wide else 2)
        raise IndexError(value)


class Network:
    """A network for a batch on a core, from one variant of its graph. Raises CompileError.

    Parameters
    ----------
    graph, variant : Graph
        The graph before and after the passes of :data:`sim.compiler.passes.pipeline.MAPPING`.
    config : Config
    batch : int
    """

    def __init__(self, graph, variant, config, batch):
        self.graph, self.config = graph, config
        self.lowered = lowered_step(network_of(variant), config, batch)
        self.memory = NetworkMemory(graph, self.lowered)
        self.constants = Constants(self.lowered)

    def search(self, fast):
        """Returns the :class:`.Schedule` with the fewest cycles, or the first one if `fast`."""
        return search(self.constants, self.config, 1, fast)

    def code(self, schedule):
        """Returns the :class:`.Code` of a schedule."""
        names = [stage.name for stage in self.graph.stages]
        return code_of(schedule, self.lowered, self.constants, self.config, names)

    def program(self, code, ops=()):
        """Returns the :class:`sim.compiler.program.Program` of a :class:`.Code`. `ops` are its instructions if they are known."""
        emit = partial(self._emit, code)
        if 0 < len(ops) <= _KEPT:
            emit = partial(tuple, self._numbered(ops))
        macs = self.lowered.geometry.batch * sum(map(self.graph.macs, self.graph.stages))
        others = {"useful_macs": macs, "memory": self.memory, "plan": code.plans, "emit": emit}
        return program_of_code(code, self.lowered, self.constants, self.config, **others)

    def _emit(self, code):
        starts, *others = code.order
        return self._numbered(emitted_again(self.constants, self.config, Order(tuple(starts), *others), code.places))

    def _numbered(self, ops):
        """Replaces the names of stages in the instructions by their numbers. Returns the instructions."""
        numbers = {stage.name: number for number, stage in enumerate(self.graph.stages)}
        for op in ops:
            op.stage, op.parts = numbers.get(op.stage, 0), [(numbers.get(stage, 0), count) for stage, count in op.parts]
        return tuple(ops)
