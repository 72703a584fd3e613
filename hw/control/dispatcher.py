"""The dispatch of instructions to the units, with the interlocks for hazards between instructions."""

from functools import reduce
from operator import or_

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from ..spec.instruction import Unit
from ..spec.isa import spaces_of
from ..spec.operations import activate_layout, matmul_layout, ring_layout, transfer_layout
from ..spec.unit_ports import dispatch_port, interlock_port, placed_port, unit_port
from .description import decoded_layout, footprint_layout
from .operation_queue import OperationQueue
from .scoreboard import Scoreboard

__all__ = ["Dispatcher", "units_of"]

#: Units, each with the name of its operation in :func:`hw.control.description.decoded_layout`, in the order of `Unit`.
_UNITS = {"load": "transfer", "weights": "transfer", "store": "transfer", "matmul": "matmul", "activate": "activate"}


def units_of(config):
    """Returns the units of a core, as {unit: name of its operation in :func:`hw.control.description.decoded_layout`}.

    The order is the order of :class:`hw.spec.instruction.Unit`.
    """
    return {**_UNITS, "ring": "ring"} if config.ring else _UNITS


class Dispatcher(wiring.Component):
    """Holds up to `in_flight` instructions, in program order within each unit.

    A new instruction is compared with the instructions in flight of other units, one a cycle. It enters the queue of its unit
    four cycles after the last comparison begins. Two instructions conflict if both access a location and at least one writes it.
    An operation issues from its queue when all earlier instructions that conflict with it have ended. A MATMUL issues before
    that, so that its loops are already set up: `interlock.blocked` tells the matmul unit which slots still wait. Instructions of
    one unit keep their order and need no comparison. SYNC and HALT wait for all instructions in flight.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    i : stream of decoded instructions, in
        :func:`hw.control.decoder.decoded_layout`.
    load, weights, store, matmul, activate, ring : unit port, out
        One for each unit of the core; see :func:`hw.spec.unit_ports.unit_port`.
    halted : 1, out
        HALT was reached, and all instructions have ended.
    placed : placed port, out
        An instruction was dispatched; see :func:`hw.spec.unit_ports.placed_port`.
    interlock : interlock port, out
        To the matrix multiply unit; see :func:`hw.spec.unit_ports.interlock_port`.
    stalls : dispatch port, out
        To the stall reasons; see :func:`hw.spec.unit_ports.dispatch_port`.
    """

    queue_depth = 4

    def __init__(self, *, config):
        self.config = config
        self.units = units_of(config)
        self.layouts = {unit: transfer_layout(config, Unit[unit.upper()]) for unit in ("load", "weights", "store")}
        self.layouts |= {"matmul": matmul_layout(config), "activate": activate_layout(config)}
        if config.ring:
            self.layouts["ring"] = ring_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(decoded_layout(config))),
                **{unit: Out(unit_port(self.layouts[unit])) for unit in self.units},
                "halted": Out(1),
                "placed": Out(placed_port(config.in_flight)),
                "interlock": Out(interlock_port(config.in_flight)),
                "stalls": Out(dispatch_port(len(self.units))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slots = self.config.in_flight
        m.submodules.scoreboard = board = Scoreboard(slots=slots)
        m.submodules.footprints = footprints = Memory(shape=footprint_layout(self.config), depth=slots, init=[])
        write, read = footprints.write_port(), footprints.read_port(domain="comb")

        # Slots of the operations that end, by unit. The end of a bus operation counts one cycle later.
        on_bus = ("load", "weights", "store")
        ended, any_late = {unit: Signal(slots, name=f"ended_by_{unit}") for unit in self.units}, Signal()
        for unit, ends in ended.items():
            port = getattr(self, unit)
            m.d["sync" if unit in on_bus else "comb"] += ends.eq(Mux(port.done, 1 << port.done_slot, 0))
        m.d.sync += any_late.eq(Cat(getattr(self, unit).done for unit in on_bus).any())
        m.d.comb += board.ended.eq(reduce(or_, ended.values()))

        # A pipeline over the occupied slots, one a cycle: select a slot, read its footprint, compare the spans, judge the result.
        # Slots of the instruction's own unit are skipped, except if such a slot is the first.
        footprint = self.i.p.footprint
        slots_of = {unit: Signal(slots, name=f"slots_of_{unit}") for unit in self.units}
        own = Signal(slots)
        m.d.comb += own.eq(self._by_unit(slots_of, footprint.unit))
        idle = Signal(init=1)  # between two instructions
        left, to_scan, waits_for = Signal(slots), Signal(slots), Signal(slots)
        reading, comparing, judging = Signal(), Signal(), Signal()
        read_slot, compared_slot, judged_slot = Signal(range(slots)), Signal(range(slots)), Signal(range(slots))
        m.d.comb += [to_scan.eq(Mux(idle, board.occupied, left)), read.addr.eq(read_slot)]
        for s in reversed(range(slots)):
            with m.If(to_scan[s]):
                m.d.sync += read_slot.eq(s)
        other = Signal.like(read.data)
        m.d.sync += [
            left.eq(to_scan & (to_scan - 1) & ~own),
            reading.eq(self.i.valid & to_scan.any()),
            comparing.eq(reading),
            judging.eq(comparing),
            compared_slot.eq(read_slot),
            judged_slot.eq(compared_slot),
            other.eq(read.data),
        ]
        spaces = ("host", *spaces_of(self.config))
        conflict = Signal(len(spaces))
        for i, space in enumerate(spaces):
            a, b = footprint[space], other[space]
            relevant = (footprint.unit != other.unit) & ((a.writes & (b.reads | b.writes)) | (a.reads & b.writes))
            if space == "host":
                relevant &= footprint.region == other.region
            flags = Signal(3, name=f"{space}_flags")
            m.d.sync += flags.eq(Cat(relevant, a.first <= b.last, b.first <= a.last))
            m.d.comb += conflict[i].eq(flags.all())

        slot = Signal(range(slots))
        for s in reversed(range(slots)):
            with m.If(~board.occupied[s]):
                m.d.sync += slot.eq(s)

        # Registered conditions of the previous cycle. `compared`: no slot is left to compare. `mine`: unit of the instruction.
        # `room`: its queue and the scoreboard have room. `clear`: it waits for no slot. The instruction has then been valid for
        # a cycle. Until it is placed, room only grows, and the slots that it waits for only end.
        compared, mine, room, clear = Signal(), Signal(len(self.units)), Signal(), Signal()
        is_sync, is_halt = Signal(), Signal()
        rooms = {unit: Signal(name=f"{unit}_room") for unit in self.units}
        none, placed, accept = Signal(), Signal(), Signal()
        alone = Signal()  # at most one slot was occupied
        is_control = footprint.unit == Unit.CONTROL
        m.d.sync += [
            alone.eq((board.occupied & (board.occupied - 1)) == 0),
            compared.eq(self.i.valid & ~placed & Mux(idle, ~board.occupied.any(), ~left.any() & ~reading & ~comparing)),
            mine.eq(Cat(footprint.unit.as_value() == Unit[unit.upper()].value for unit in self.units)),
            room.eq(~is_control & ~board.occupied.all() & self._by_unit(rooms, footprint.unit)),
            clear.eq(~(waits_for & board.occupied).any() & ~(judging & conflict.any())),
            is_sync.eq(self.i.valid & ~placed & is_control & ~self.i.p.halt),
            is_halt.eq(self.i.valid & ~placed & is_control & self.i.p.halt),
        ]
        m.d.comb += [
            none.eq(~board.occupied.any() | (alone & any_late)),
            self.stalls.at_end.eq(is_sync | is_halt),
            self.halted.eq(is_halt & none),
            accept.eq(compared & room),
            placed.eq(accept | (is_sync & none)),
            self.i.ready.eq(placed),
            self.placed.valid.eq(accept),
            self.placed.slot.eq(slot),
            self.placed.pc.eq(self.i.p.pc),
            board.allocate.eq(accept),
            board.slot.eq(slot),
            board.waits_for.eq(waits_for & board.occupied),
            board.clear.eq(clear),
            write.en.eq(accept),
            write.addr.eq(slot),
            write.data.eq(footprint),
        ]
        m.d.sync += idle.eq(placed | (idle & ~self.i.valid))
        with m.If(idle):
            m.d.sync += waits_for.eq(0)
        with m.Elif(judging & conflict.any()):
            m.d.sync += waits_for.bit_select(judged_slot, 1).eq(1)

        for index, (unit, kind) in enumerate(self.units.items()):
            queue = m.submodules[f"{unit}_queue"] = OperationQueue(slot=slot.shape(), depth=self.queue_depth)
            out = getattr(self, unit).op
            held = self._hold(m, unit, accept, slot, self.i.p[kind], queue.r_slot)
            m.d.comb += [rooms[unit].eq(queue.w_rdy), queue.w_slot.eq(slot)]
            if unit == "matmul":
                m.d.comb += [
                    *(out.p[name].eq(value) for name, value in held.items()),
                    queue.w_en.eq(accept & mine[index]),
                    out.p.tag.slot.eq(queue.r_slot),
                    out.valid.eq(queue.r_rdy),
                    queue.r_en.eq(queue.r_rdy & out.ready),
                    self.stalls.matmul_queued.eq(queue.r_rdy),
                ]
            else:
                # `out` is a register, as the unit computes with the operation in the cycle in which it arrives. An operation
                # leaves the queue one cycle after `out` takes it. An operation bypasses the queue if the queue and `out` are
                # empty and the operation waits for no slot.
                at_once, offered = Signal(name=f"{unit}_at_once"), Signal(name=f"{unit}_offered")
                m.d.comb += [
                    at_once.eq(accept & mine[index] & clear & ~queue.r_rdy & ~out.valid),
                    queue.w_en.eq(accept & mine[index] & ~at_once),
                    queue.r_en.eq(offered),
                ]
                m.d.sync += offered.eq(0)
                with m.If(out.valid):
                    m.d.sync += out.valid.eq(~out.ready)
                with m.Elif(queue.r_rdy):
                    ready = ~board.blocked.bit_select(queue.r_slot, 1)
                    m.d.sync += [out.p.tag.slot.eq(queue.r_slot), out.valid.eq(ready), offered.eq(ready)]
                    m.d.sync += [out.p[name].eq(value) for name, value in held.items()]
                with m.Else():
                    m.d.sync += [out.p.tag.slot.eq(slot), out.valid.eq(at_once)]
                    m.d.sync += [out.p[name].eq(self.i.p[kind][name]) for name in held]
            with m.If(accept):
                m.d.sync += slots_of[unit].bit_select(slot, 1).eq(mine[index])

        interlock = self.interlock
        m.d.comb += interlock.blocked.eq(board.blocked)
        # For the counters, two cycles late.
        pending = Signal(slots)
        m.d.sync += [
            pending.eq(Mux(interlock.held, Array(board.waiting)[interlock.held_slot], 0)),
            *(self.stalls.waits[i].eq((pending & slots_of[unit]).any()) for i, unit in enumerate(self.units)),
        ]
        return m

    def _hold(self, m, unit, accept, slot, operation, at):
        """Adds the memory of a unit's operations, one for each slot. Returns the fields of the operation in slot `at`, by name.
        `accept` writes `operation`, whose additional fields and bits the unit does not need, to `slot`."""
        kept = data.StructLayout({name: field.shape for name, field in self.layouts[unit] if name != "tag"})
        m.submodules[f"{unit}_operations"] = held = Memory(shape=kept, depth=self.config.in_flight, init=[])
        write, read = held.write_port(), held.read_port(domain="comb")
        m.d.comb += [
            write.en.eq(accept),
            write.addr.eq(slot),
            read.addr.eq(at),
            *(write.data[name].eq(operation[name]) for name, _ in kept),
        ]
        return {name: read.data[name] for name, _ in kept}

    def _by_unit(self, values, unit):
        """Returns the value of `values`, a dict by unit name, for the unit `unit`. The result is undefined for CONTROL."""
        values = list(values.values())
        return Array(values[: Unit.CONTROL.value] + values[Unit.CONTROL.value - 1 :] if "ring" in self.units else values)[
            unit.as_value()
        ]
