"""The ports between the controller and the units: issue and completion of operations, and faults."""

from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, Signature

from .isa import Fault

__all__ = ["unit_port", "fault_port"]


def unit_port(operation):
    """Returns the signature of a unit's port, as seen from the dispatcher.

    Parameters
    ----------
    operation : layout
        One of :mod:`hw.spec.operations`, with a `tag`.

    Members
    -------
    op : stream of operations, out
        Operations start in order.
    done : 1, in
        An operation has ended.
    done_slot : in
        Slot of the operation that has ended.
    """
    return Signature(
        {"op": Out(stream.Signature(operation)), "done": In(1), "done_slot": In(operation["tag"].shape["slot"].shape)}
    )


def fault_port():
    """Returns the signature of a fault report, as seen from the source of the fault.

    Members
    -------
    valid : 1, out
        A fault is reported in this cycle.
    cause : Fault, out
    pc : 32, out
        Offset in region MODEL of the instruction at fault.
    """
    return Signature({"valid": Out(1), "cause": Out(Fault), "pc": Out(32)})
