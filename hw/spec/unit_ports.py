"""The ports between the controller and the units: issue and completion of operations, interlocks, stalls and faults."""

from amaranth.lib import stream
from amaranth.lib.wiring import In, Out, Signature

from .isa import Fault

__all__ = [
    "unit_port",
    "interlock_port",
    "issue_port",
    "dispatch_port",
    "stall_port",
    "fault_port",
    "unit_fault_port",
    "placed_port",
]


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


def interlock_port(slots):
    """Returns the signature of the interlock of issued MATMULs, as seen from the dispatcher.

    Parameters
    ----------
    slots : int
        Instructions in flight, a power of two.

    Members
    -------
    blocked : slots, out
        Slots whose instructions wait for other units.
    held : 1, in
        The MATMUL in `held_slot` would begin if it were not blocked.
    held_slot : slot, in
    """
    return Signature({"blocked": Out(slots), "held": In(1), "held_slot": In(range(slots))})


def issue_port():
    """Returns the signature of the issue of rows to the array, as seen from the matrix multiply unit.

    Members
    -------
    issued : 1, out
        A row is issued in this cycle.
    idle : 1, out
        The unit holds no row that is not issued.
    waits_weights, waits_sums : 1, out
        The next pass stalls for its tile of weights, or for a read-after-write hazard on the accumulators.
    """
    return Signature({"issued": Out(1), "idle": Out(1), "waits_weights": Out(1), "waits_sums": Out(1)})


def dispatch_port(units):
    """Returns the signature of the state of dispatch that explains stalls of the array, as seen from the dispatcher.

    Parameters
    ----------
    units : int
        Number of units.

    Members
    -------
    waits : units, out
        Units that the next MATMUL waits for, two cycles late: one bit each, in the order of
        :func:`hw.control.dispatcher.units_of`.
    matmul_queued : 1, out
        A MATMUL is dispatched, but the matrix multiply unit has not taken it.
    at_end : 1, out
        SYNC or HALT waits for the preceding instructions.
    """
    return Signature({"waits": Out(units), "matmul_queued": Out(1), "at_end": Out(1)})


def stall_port(reasons):
    """Returns the signature of the use of the array in each cycle, as seen from the block that computes stall reasons.

    Members
    -------
    busy : 1, out
        A row entered the array in this cycle.
    stall : reasons, out
        Reasons why no row entered, one bit each in the order of :func:`hw.spec.registers.stalls_of`. The lowest set bit counts.
    """
    return Signature({"busy": Out(1), "stall": Out(reasons)})


def fault_port():
    """Returns the signature of the report of a fault in an instruction, as seen from its source.

    Members
    -------
    valid : 1, out
        A fault is reported in this cycle.
    cause : Fault, out
    pc : 32, out
        Offset in region MODEL of the instruction at fault.
    """
    return Signature({"valid": Out(1), "cause": Out(Fault), "pc": Out(32)})


def unit_fault_port(operation):
    """Returns the signature of the report of a fault in an operation, as seen from its unit.

    Parameters
    ----------
    operation : layout
        One of :mod:`hw.spec.operations`, with a `tag`.

    Members
    -------
    valid : 1, out
        A fault is reported in this cycle.
    cause : Fault, out
    slot : slot, out
        Slot of the operation at fault, which is still in flight.
    """
    return Signature({"valid": Out(1), "cause": Out(Fault), "slot": Out(operation["tag"].shape["slot"].shape)})


def placed_port(slots):
    """Returns the signature of the report of instructions that get their slots, as seen from the dispatcher.

    Members
    -------
    valid : 1, out
        An instruction gets `slot` in this cycle.
    slot : slot, out
    pc : 32, out
        Offset of the instruction in region MODEL.
    """
    return Signature({"valid": Out(1), "slot": Out(range(slots)), "pc": Out(32)})
