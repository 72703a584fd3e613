"""Parameters, optimizer state and learning rates in the program of a training step.

A program from :func:`sim.compiler.training.step.compile_step` has these names in `tensors`:

* `(number, name)`: parameter `number` of the :class:`sim.ir.training.TrainingGraph`, or its optimizer state. The names are
  :data:`MASTER` and the optimizer's slots;
* :func:`sim.compiler.program.factor` of a name: a factor of the optimizer, in region MODEL.

Its `memory` has the attributes `training` and `optimizer`.
"""

from amaranth_tpu.hw.spec.isa import Region

from ...golden.training import TrainingState, divisor_of

__all__ = ["MASTER", "pack_state", "unpack_states", "with_rate"]

#: Name of the parameter itself, among the names of its optimizer state.
MASTER = "master"


def with_rate(program, rate, step=1, counted=None):
    """Returns the contents of region MODEL for a learning rate and update number `step`, counted from 1. `counted` is as in
    :func:`sim.golden.training.step`, for the samples of all cores. Only the optimizer's tiles, and the factors of UPDATEs,
    differ."""
    divisor = divisor_of(program.memory.training, program.batch * program.cores, counted)
    return program.with_factors(program.memory.optimizer.factors(rate, divisor, step))


def pack_state(program, state, rank=0):
    """Returns the contents of region SCRATCH for core `rank` of the ring, from a :class:`sim.golden.training.TrainingState`."""
    arrays = [{MASTER: master, **slots} for master, slots in zip(state.masters, state.slots)]
    values = {(number, name): array for number, own in enumerate(arrays) for name, array in own.items()}
    return program.pack(Region.SCRATCH, values, rank)


def unpack_states(program, data, steps=0):
    """Reads the :class:`sim.golden.training.TrainingState` of each core after `steps` updates, from a list with region SCRATCH
    of each core. With a correct program, all states are equal."""
    parameters, slots = range(len(program.memory.training.parameters)), program.memory.optimizer.slots
    found = [{name: program.unpack_all(data, (number, name)) for name in (MASTER, *slots)} for number in parameters]
    return [
        TrainingState([one[MASTER][rank] for one in found], [{name: one[name][rank] for name in slots} for one in found], steps)
        for rank in range(len(data))
    ]
