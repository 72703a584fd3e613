"""The ports of run control: registers, state of the run, bus managers, regions of host memory and the ring."""

from amaranth.lib.wiring import In, Out, Signature

from .isa import Fault
from .registers import COUNTER_INDEX, MOST_CORES

__all__ = [
    "run_registers",
    "run_state",
    "manager_port",
    "region_port",
    "ring_position",
    "ring_links",
    "ring_events",
    "ring_check",
]


def run_registers(config):
    """Returns the signature of the registers that concern a run, as seen from the registers.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    start, reset, acknowledge : 1, out
        Commands; `acknowledge` clears `pending`.
    enable_written, enable : 1, out
        Writes `enable` to `enabled`.
    timeout : 32, out
        Cycles.
    active, done, faulted, quiet : 1, in
        Status.
    fault_cause : Fault, in
    fault_pc : 32, in
    pending, enabled : 1, in
        A run has ended; the interrupt is enabled.
    cycles, read_beats, write_beats : 32, in
    counter : index, out
    count : 32, in
        Value of the counter that `counter` selected in the previous cycle. :func:`hw.spec.registers.counter_index` gives the
        index of `busy` and of each stall reason.
    ring_sent, ring_received : 32, in
        Counters of 32-bit words. Only in a core with a ring.
    """
    commands = ("start", "reset", "acknowledge", "enable_written", "enable")
    status = ("active", "done", "faulted", "quiet", "pending", "enabled")
    counters = ("cycles", "read_beats", "write_beats", *(("ring_sent", "ring_received") if config.ring else ()))
    return Signature(
        {
            **dict.fromkeys(commands, Out(1)),
            "timeout": Out(32),
            **dict.fromkeys(status, In(1)),
            "fault_cause": In(Fault),
            "fault_pc": In(32),
            **dict.fromkeys(counters, In(32)),
            "counter": Out(COUNTER_INDEX),
            "count": In(32),
        }
    )


def run_state():
    """Returns the signature of the state of a run, as seen from run control.

    Members
    -------
    active : 1, out
        A run is in progress, or waits for the bus managers.
    faulted : 1, out
        The last run ended with a fault.
    reset : 1, out
        Software resets the core.
    """
    return Signature({"active": Out(1), "faulted": Out(1), "reset": Out(1)})


def manager_port():
    """Returns the signature of the control of a bus manager, as seen from run control.

    Members
    -------
    flush : 1, out
        Cancel all bursts.
    quiet : 1, in
        No burst is in flight.
    beat : 1, in
        A beat is transferred on the bus.
    moves : 1, in
        A handshake happens on one of the channels.
    """
    return Signature({"flush": Out(1), "quiet": In(1), "beat": In(1), "moves": In(1)})


def region_port(address_width):
    """Returns the signature of a region of host memory, as seen from its check.

    Members
    -------
    base : address_width, out
    size : 32, out
        Bytes; 0 if the region exceeds the address space of the bus.
    """
    return Signature({"base": Out(address_width), "size": Out(32)})


def ring_position():
    """Returns the signature of the position in a ring, as seen from the registers.

    Members
    -------
    rank, size : out
        Rank of the core, and number of cores in the ring.
    flush : 1, out
        Discard all received vectors.
    """
    return Signature({"rank": Out(range(MOST_CORES)), "size": Out(range(MOST_CORES + 1)), "flush": Out(1)})


def ring_links():
    """Returns the signature of the state of the links, as seen from the ring unit.

    Members
    -------
    held, offered : 1, out
        The input buffer holds a received vector; a vector is offered to the next core.
    """
    return Signature({"held": Out(1), "offered": Out(1)})


def ring_events():
    """Returns the signature of the events of the ring in the previous cycle, as seen from the ring unit.

    Members
    -------
    sends, takes, moves : 1, out
        A vector was sent; a received vector was used; the unit made any progress.
    """
    return Signature({"sends": Out(1), "takes": Out(1), "moves": Out(1)})


def ring_check():
    """Returns the signature for the decoder's check of RING, as seen from the ring.

    Members
    -------
    size : out
        Number of cores in the ring.
    ready : 1, out
        RING may execute.
    """
    return Signature({"size": Out(range(MOST_CORES + 1)), "ready": Out(1)})
