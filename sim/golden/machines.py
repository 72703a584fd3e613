"""The models of cores that programs run on: compiled C if the host has a C compiler, else Python. The bits are the same."""

import functools

from amaranth_tpu.hw.tools.process import ToolError

from .c_machine import CMachine, CMachineRing, c_library
from .isa_check import MachineFault
from .isa_model import Machine
from .isa_ring import MachineRing

__all__ = ["MachineFault", "machine_of", "ring_of", "why_python"]


@functools.cache
def why_python():
    """Returns the reason, as a line, why programs run on the Python model; None if they run on the C model."""
    try:
        c_library()
    except ToolError as error:
        return str(error)
    return None


def machine_of(config, regions=None):
    """Returns a model of one core, with the interface of :class:`sim.golden.isa_model.Machine`.

    Parameters
    ----------
    config : hw.config.Config
    regions : dict Region -> bytearray
        Host memory, which :meth:`run` changes in place. Regions that a program does not write may be bytes.
    """
    return Machine(config, regions) if why_python() else CMachine(config, regions)


def ring_of(config, regions):
    """Returns a model of cores in a ring, with the interface of :class:`sim.golden.isa_ring.MachineRing`.

    Parameters
    ----------
    config : hw.config.Config
        Configuration of every core.
    regions : list of dict Region -> bytearray
        Host memory of each core, in the form that :func:`machine_of` takes.
    """
    return MachineRing(config, regions) if why_python() else CMachineRing(config, regions)
