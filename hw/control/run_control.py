"""The control of a run: its start and end, faults, the interrupt, and the counters that account for each cycle."""

from amaranth import Module, Mux, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out

from ..spec.isa import Fault
from ..spec.registers import stalls_of
from ..spec.unit_ports import fault_port

__all__ = ["RunControl"]


class State(enum.Enum, shape=2):
    """States of run control: no run, waiting for the bus managers to become quiet, running."""

    IDLE = 0
    QUIET = 1
    RUN = 2


#: Counters of a core with a ring, each with the event that it counts.
_RING_COUNTERS = {"ring_sent": "ring_sends", "ring_received": "ring_takes"}


class RunControl(wiring.Component):
    """Starts and ends runs, and counts cycles and events.

    Outside a run all units are held in reset (`running` is 0) for at least two cycles, and the bus managers drain. A start waits
    until both managers are `quiet`. A run ends with `halted`, with a fault, or by `reset`. After `timeout` cycles without
    `progress`, a run ends with the fault TIMEOUT, whatever it waits for. Counted events and `progress` are registered first, so
    that no path from another block ends in a counter.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    start, reset, acknowledge : 1, in
        Commands. `acknowledge` clears `pending`.
    enable_written, enable : 1, in
        Writes `enable` to `enabled`.
    timeout : 32, in
        Cycles.
    reader_quiet, writer_quiet : 1, in
        The bus manager has no outstanding response.
    progress, halted : 1, in
        `progress` is 1 if any unit has made progress in this cycle, `halted` if HALT has ended.
    fault : fault port, in
        See :func:`hw.spec.unit_ports.fault_port`.
    present_pc : 32, in
        Becomes `fault_pc` after a TIMEOUT.
    running : 1, out
        Releases the units from reset.
    active, done, faulted, quiet : 1, out
        Status. `quiet` covers both managers, one cycle late.
    fault_cause : Fault, out
    fault_pc : 32, out
    pending, enabled, irq : 1, out
        A run has ended; the interrupt is enabled; both of these.
    busy : 1, in
        A row entered the array in this cycle.
    stall : reasons, in
        Reasons why no row entered, one bit each in the order of :func:`hw.spec.registers.stalls_of`. The lowest set bit counts.
    read_beat, write_beat : 1, in
        A beat is transferred on the bus.
    cycles, busy_cycles, read_beats, write_beats : 32, out
    stall_cycles : array of 32, out
        Counters.
    ring_sends, ring_takes : 1, in
        A vector was sent to the ring, or taken from it. Only in a core with a ring.
    ring_sent, ring_received : 32, out
        Counters of these vectors.
    """

    def __init__(self, *, config):
        self.config = config
        self._ring_counters = _RING_COUNTERS if config.ring else {}
        reasons = len(stalls_of(config))
        super().__init__(
            {
                "start": In(1),
                "reset": In(1),
                "acknowledge": In(1),
                "timeout": In(32),
                "enable_written": In(1),
                "enable": In(1),
                "reader_quiet": In(1),
                "writer_quiet": In(1),
                "progress": In(1),
                "halted": In(1),
                "fault": In(fault_port()),
                "present_pc": In(32),
                "running": Out(1),
                "active": Out(1),
                "done": Out(1),
                "faulted": Out(1),
                "quiet": Out(1),
                "fault_cause": Out(Fault),
                "fault_pc": Out(32),
                "pending": Out(1),
                "enabled": Out(1),
                "irq": Out(1),
                "busy": In(1),
                "stall": In(reasons),
                "read_beat": In(1),
                "write_beat": In(1),
                "cycles": Out(32),
                "busy_cycles": Out(32),
                "stall_cycles": Out(32).array(reasons),
                "read_beats": Out(32),
                "write_beats": Out(32),
                **({event: In(1) for event in self._ring_counters.values()} | {name: Out(32) for name in self._ring_counters}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        silent = Signal(32)
        fail = Signal()

        state = Signal(State)
        moved, counting, busy, stall = Signal(), Signal(), Signal(), Signal(len(self.stall))
        read_beat, write_beat = Signal(), Signal()
        m.d.sync += [
            moved.eq(self.progress),
            counting.eq(self.active),
            busy.eq(self.busy),
            stall.eq(self.stall),
            read_beat.eq(self.read_beat),
            write_beat.eq(self.write_beat),
        ]
        events = {event: Signal(name=event) for event in self._ring_counters.values()}
        m.d.sync += [seen.eq(getattr(self, event)) for event, seen in events.items()]
        with m.If(counting):
            m.d.sync += self.cycles.eq(self.cycles + 1)
            reasons = (
                (self.read_beats, read_beat),
                (self.write_beats, write_beat),
                (self.busy_cycles, busy),
                *((counter, stall[index] & ~stall[:index].any() & ~busy) for index, counter in enumerate(self.stall_cycles)),
            )
            reasons += tuple((getattr(self, name), events[event]) for name, event in self._ring_counters.items())
            for counter, counts in reasons:
                with m.If(counts):
                    m.d.sync += counter.eq(counter + 1)

        m.d.comb += self.irq.eq(self.pending & self.enabled)
        with m.If(self.enable_written):
            m.d.sync += self.enabled.eq(self.enable)
        with m.If(self.acknowledge):
            m.d.sync += self.pending.eq(0)
        m.d.sync += self.quiet.eq(self.reader_quiet & self.writer_quiet)
        ran = Signal()  # `running` in the previous cycle
        m.d.sync += ran.eq(self.running)

        # Registered too, because the comparison is wide.
        expired = Signal()
        m.d.comb += self.active.eq(state != State.IDLE)
        m.d.sync += [
            silent.eq(Mux(moved | ~self.active, 0, silent + 1)),
            expired.eq(self.active & (silent >= self.timeout) & silent.any()),
        ]
        with m.Switch(state):
            with m.Case(State.IDLE):
                with m.If(self.start & ~self.faulted):
                    m.d.sync += [
                        state.eq(Mux(self.quiet & ~ran, State.RUN, State.QUIET)),
                        self.running.eq(self.quiet & ~ran),
                        self.done.eq(0),
                        *(
                            counter.eq(0)
                            for counter in (
                                *(self.cycles, self.busy_cycles, self.read_beats, self.write_beats, *self.stall_cycles),
                                *(getattr(self, name) for name in self._ring_counters),
                            )
                        ),
                    ]
            with m.Case(State.QUIET):
                with m.If(expired):
                    m.d.comb += fail.eq(1)
                with m.Elif(self.quiet):
                    m.d.sync += [state.eq(State.RUN), self.running.eq(1)]
            with m.Case(State.RUN):
                with m.If(self.fault.valid | expired):
                    m.d.comb += fail.eq(1)
                with m.Elif(self.halted):
                    m.d.sync += [state.eq(State.IDLE), self.running.eq(0), self.done.eq(1), self.pending.eq(1)]

        with m.If(fail):
            m.d.sync += [state.eq(State.IDLE), self.running.eq(0), self.faulted.eq(1), self.pending.eq(1)]
            with m.If(self.running & self.fault.valid):
                m.d.sync += [self.fault_cause.eq(self.fault.cause), self.fault_pc.eq(self.fault.pc)]
            with m.Else():
                m.d.sync += [self.fault_cause.eq(Fault.TIMEOUT), self.fault_pc.eq(self.present_pc)]
        with m.If(self.reset):
            m.d.sync += [
                state.eq(State.IDLE),
                self.running.eq(0),
                self.done.eq(0),
                self.faulted.eq(0),
                self.pending.eq(0),
                self.fault_cause.eq(Fault.NONE),
                self.fault_pc.eq(0),
            ]
        return m
