"""The control of a run: its start and end, faults, the interrupt, and the counters that account for each cycle."""

from amaranth import Module, Mux, Signal
from amaranth.lib import enum, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from ..spec.isa import Fault
from ..spec.registers import COUNTER_INDEX, counter_index, stalls_of
from ..spec.run_ports import manager_port, ring_events, run_registers, run_state
from ..spec.unit_ports import fault_port, stall_port
from .cycle_counters import CycleCounters

__all__ = ["RunControl"]


class State(enum.Enum, shape=2):
    """States of run control: no run, waiting for the bus managers to become quiet, running."""

    IDLE = 0
    QUIET = 1
    RUN = 2


class RunControl(wiring.Component):
    """Starts and ends runs, and counts cycles and events.

    Outside a run all units are held in reset (`running` is 0) for at least two cycles, and the bus managers drain. A start waits
    until both managers are `quiet`. A run ends with `halted`, with a fault, or by `reset`. After `timeout` cycles without
    progress, a run ends with the fault TIMEOUT, whatever it waits for. A cycle has progress if a row enters the array, if a bus
    manager or the ring moves, or with `progress`. Counted events and progress are registered first, so that no path from another
    block ends in a counter. `busy` and the stall reasons are counted two cycles later than other events.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    registers : run registers, in
        See :func:`hw.spec.run_ports.run_registers`. `quiet` covers both managers, one cycle late.
    reader, writer : manager port, out
        See :func:`hw.spec.run_ports.manager_port`.
    array : stall port, in
        See :func:`hw.spec.unit_ports.stall_port`.
    progress, halted : 1, in
        `progress` is 1 if another unit makes progress in this cycle, `halted` if HALT has ended.
    fault : fault port, in
        See :func:`hw.spec.unit_ports.fault_port`.
    present_pc : 32, in
        Becomes `fault_pc` after a TIMEOUT.
    ring : ring events, in
        See :func:`hw.spec.run_ports.ring_events`. Only in a core with a ring.
    running : 1, out
        A run is active: the units are not in reset.
    stopped : 1, out
        Equals ~`running`. It is a register too, since it resets most registers of the core.
    state : run state, out
        See :func:`hw.spec.run_ports.run_state`.
    irq : 1, out
        An interrupt is enabled and pending.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__(
            {
                "registers": In(run_registers(config)),
                "reader": Out(manager_port()),
                "writer": Out(manager_port()),
                "array": In(stall_port(len(stalls_of(config)))),
                "progress": In(1),
                "halted": In(1),
                "fault": In(fault_port()),
                "present_pc": In(32),
                **({"ring": In(ring_events())} if config.ring else {}),
                "running": Out(1),
                "stopped": Out(1, init=1),
                "state": Out(run_state()),
                "irq": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        registers, reader, writer, ring = self.registers, self.reader, self.writer, self.config.ring
        silent = Signal(32)
        fail = Signal()

        state = Signal(State)
        moved, counting, busy, stall = Signal(), Signal(), Signal(), Signal(len(self.array.stall))
        read_beat, write_beat = Signal(), Signal()
        progress = self.progress | self.array.busy | reader.moves | writer.moves
        m.d.sync += [
            moved.eq(progress | self.ring.moves if ring else progress),
            counting.eq(registers.active),
            busy.eq(self.array.busy),
            stall.eq(self.array.stall),
            read_beat.eq(reader.beat),
            write_beat.eq(writer.beat),
        ]
        counts = [(registers.read_beats, read_beat), (registers.write_beats, write_beat)]
        if ring:
            words = exact_log2(self.config.n) - 1  # of 32 bits in a vector
            for name, event in (("ring_sent", self.ring.sends), ("ring_received", self.ring.takes)):
                vectors, seen = Signal(32, name=f"{name}_vectors"), Signal(name=f"{name}_seen")
                m.d.sync += seen.eq(event)
                m.d.comb += getattr(registers, name).eq(vectors << words)
                counts.append((vectors, seen))
        with m.If(counting):
            m.d.sync += registers.cycles.eq(registers.cycles + 1)
            for counter, event in counts:
                with m.If(event):
                    m.d.sync += counter.eq(counter + 1)

        # Exactly one of `busy` and the stall reasons counts a cycle: one adder for all.
        m.submodules.counters = counters = CycleCounters(count=1 << COUNTER_INDEX)
        clear, counted = Signal(), Signal()
        m.d.comb += [
            counters.clear.eq(clear),
            counters.counts.eq(counted),
            counters.read_index.eq(registers.counter),
            registers.count.eq(counters.value),
        ]
        m.d.sync += counted.eq(counting & ~clear)
        for reason, one in reversed([*zip(stalls_of(self.config), stall)]):
            with m.If(one):
                m.d.sync += counters.index.eq(counter_index(f"stall_{reason}"))
        with m.If(busy):
            m.d.sync += counters.index.eq(counter_index("busy"))

        m.d.comb += self.irq.eq(registers.pending & registers.enabled)
        with m.If(registers.enable_written):
            m.d.sync += registers.enabled.eq(registers.enable)
        with m.If(registers.acknowledge):
            m.d.sync += registers.pending.eq(0)
        m.d.sync += registers.quiet.eq(reader.quiet & writer.quiet)
        ran = Signal()  # `running` in the previous cycle
        m.d.sync += ran.eq(self.running)

        m.d.comb += [
            registers.active.eq(state != State.IDLE),
            *(manager.flush.eq(self.stopped) for manager in (reader, writer)),
            self.state.active.eq(registers.active),
            self.state.faulted.eq(registers.faulted),
            self.state.reset.eq(registers.reset),
        ]

        # Registered too, because the comparison is wide.
        expired = Signal()
        # A register, as the dispatcher may be far away. 0 outside a run, since the dispatcher is reset after `stopped`.
        halted = Signal()
        m.d.sync += halted.eq(self.halted & self.running)
        m.d.sync += [
            silent.eq(Mux(moved | ~registers.active, 0, silent + 1)),
            expired.eq(registers.active & (silent >= registers.timeout) & silent.any()),
        ]
        with m.Switch(state):
            with m.Case(State.IDLE):
                with m.If(registers.start & ~registers.reset & ~registers.faulted):
                    m.d.comb += clear.eq(1)
                    m.d.sync += [
                        state.eq(Mux(registers.quiet & ~ran, State.RUN, State.QUIET)),
                        *self._run(registers.quiet & ~ran),
                        registers.done.eq(0),
                        registers.cycles.eq(0),
                        *(counter.eq(0) for counter, _ in counts),
                    ]
            with m.Case(State.QUIET):
                with m.If(expired):
                    m.d.comb += fail.eq(1)
                with m.Elif(registers.quiet):
                    m.d.sync += [state.eq(State.RUN), *self._run(1)]
            with m.Case(State.RUN):
                with m.If(self.fault.valid | expired):
                    m.d.comb += fail.eq(1)
                with m.Elif(halted):
                    m.d.sync += [state.eq(State.IDLE), *self._run(0), registers.done.eq(1), registers.pending.eq(1)]

        with m.If(fail):
            m.d.sync += [state.eq(State.IDLE), *self._run(0), registers.faulted.eq(1), registers.pending.eq(1)]
            with m.If(self.running & self.fault.valid):
                m.d.sync += [registers.fault_cause.eq(self.fault.cause), registers.fault_pc.eq(self.fault.pc)]
            with m.Else():
                m.d.sync += [registers.fault_cause.eq(Fault.TIMEOUT), registers.fault_pc.eq(self.present_pc)]
        with m.If(registers.reset):
            m.d.sync += [
                state.eq(State.IDLE),
                *self._run(0),
                registers.done.eq(0),
                registers.faulted.eq(0),
                registers.pending.eq(0),
                registers.fault_cause.eq(Fault.NONE),
                registers.fault_pc.eq(0),
            ]
        return m

    def _run(self, now):
        return [self.running.eq(now), self.stopped.eq(Mux(now, 0, 1))]
