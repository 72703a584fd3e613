"""The ports between the controller and the units: operations and their ends, and faults."""

from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, Signature

from .isa import Fault

__all__ = ["unit_port", "fault_port"]


def unit_port(operation):
    """A unit as the dispatcher sees it.

    Parameters
    ----------
    operation : layout
        One of :mod:`hw.spec.operations`, with a `tag`.

    Members
    -------
    op : stream of operations, out
        They begin in order.
    done : 1, in
        An operation has ended.
    done_slot : in
        Its slot.
    """
    return Signature(
        {"op": Out(stream.Signature(operation)), "done": In(1), "done_slot": In(operation["tag"].shape["slot"].shape)}
    )


def fault_port():
    """A fault as its source tells it.

    Members
    -------
    valid : 1, out
        There is a fault in this cycle.
    cause : Fault, out
    pc : 32, out
        Offset in region MODEL of the instruction at fault.
    """
    return Signature({"valid": Out(1), "cause": Out(Fault), "pc": Out(32)})
