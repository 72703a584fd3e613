"""Programs of training steps that :mod:`sim.compiler.training` compiles, for the trainer."""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ..compiler.program import CompileError
from ..compiler.training.compile import NotMatrices, compile_graph
from ..golden.training import step_graph, target_tensors
from .cropping import cropped
from .parameters import IMAGE, MASTER
from .refusals import needs_matrices

__all__ = ["compile_step_graph"]


@dataclass(frozen=True, eq=False)
class _GraphMemory:
    """The memory map of a training step, with the interface of :class:`sim.backward.memory.StepMemory` for programs."""

    step: Any
    training: Any
    optimizer: Any

    @property
    def network(self):
        return self.training.graph

    @property
    def output(self):
        return self.step.output

    def inputs(self, x, targets, masks=None, counted=None):
        """Returns {tensor: values} of region INPUT; see :meth:`sim.backward.memory.StepMemory.inputs`. `counted` is as in
        :func:`sim.golden.training.step`."""
        values = self.network.arrange_inputs(x)
        for name, number in zip(self.step.inputs[len(values) :], sorted(masks or {})):
            height, width, _ = self.step.tensors[name].shape
            values[name] = masks[number][:, :height, :width]  # the other positions are not read
        return values | target_tensors(self.step, self.network, targets, counted)


def _with_shape(tensor, shape):
    """Returns a :class:`.HostTensor` with arrays of another shape."""
    return replace(tensor, unpack=lambda data: tensor.unpack(data).reshape(shape))


def _explained(graph, text):
    """Returns the text of a refusal with the title of the operator in place of its tensor, and the way out."""
    tensor, _, cause = text.partition(": ")
    titles = {stage.output: stage.title or f"stage {stage.name!r}" for stage in graph.stages}
    one = tensor.removeprefix("gradient of ").removesuffix(".weights")
    titles |= {stage.name: titles[stage.output] for stage in graph.stages}
    return f"{titles.get(one, tensor)}: {cause}; train it on the golden model alone, without steps on a core"


def compile_step_graph(training, optimizer, config, batch, dropout, cores, sharded=True):
    """Compiles one training step for `batch` samples per core. The parameters are as in
    :func:`sim.backward.compile.compile_step`. Every core updates all weights if divided updates can't be compiled. Raises
    CompileError: one line that names the operator."""
    if sharded and cores > 1:
        with suppress(CompileError):
            return _compiled(training, optimizer, config, batch, dropout, cores, True)
    return _compiled(training, optimizer, config, batch, dropout, cores, False)


def _compiled(training, optimizer, config, batch, dropout, cores, sharded):
    masked = tuple(sorted(dropout.stages(training))) if dropout else ()
    read = training if needs_matrices(training) else cropped(training)
    step = step_graph(read, optimizer, masked, cores, sharded)
    try:
        program = compile_graph(step, config, batch, cores)
    except NotMatrices as error:
        raise CompileError(_explained(training.graph, str(error))) from None
    tensors = dict(program.tensors)
    for number, (name, one) in enumerate(zip(step.parameters, training.parameters)):
        for slot, tensor in {MASTER: step.masters[name], **step.slots[name]}.items():
            tensors[number, slot] = _with_shape(tensors[tensor], one.initial.shape)
        if step.is_shared(name):
            tensors[number, IMAGE] = _with_shape(tensors[name], one.initial.shape)
    return replace(program, memory=_GraphMemory(step, training, optimizer), tensors=tensors)
