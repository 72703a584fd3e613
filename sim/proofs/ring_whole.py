"""Bounded proofs for whole rings: after a reset, stalls of links and ports during some cycles cannot cause a deadlock.

The SMT-LIB text describes all ring units and link FIFOs of the RTL. It is satisfiable only if stalls can lead to a state in which
an operation is in progress and nothing moves, although nothing stalls any more. Vectors, stalls, the mode, the rows, and the
cycles in which the cores start are symbolic, so the proof holds for all of their values.
"""

from amaranth import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.spec.operations import ring_layout

from .smt import MEMORIES, Circuit

__all__ = ["RingOfUnits", "ring_script"]

#: Number of cycles after a stall, in addition to the pipeline's latency, in which something must move. An operation takes five to
#: start.
_MARGIN = 8
#: Width and limit of numbers of vectors. The limit prevents differences from wrapping; more bits slow the solver down many times.
_WIDTH, _LESS_THAN = 8, 64
_PAUSED = ("begin", "open", "grant")


class RingOfUnits(wiring.Component):
    """Ring units connected to a ring: each link leads to the FIFO of the next unit. All units execute the same operations.

    Parameters
    ----------
    config : hw.config.Config
    size : int
        Number of ring units.
    operations : int
        Number of operations that each unit executes.

    Members
    -------
    op : operation, in
        The operation, in the layout :func:`hw.spec.operations.ring_layout`.
    begin, open, grant : `size` bits, in
        One bit per unit. `begin`: the next operation is offered to the unit. `open`: its link is not stalled. `grant`: its memory
        port is granted.
    moves : 1, out
        1 if something moves in a unit.
    waits : 1, out
        1 if a unit has not finished its operations.
    """

    def __init__(self, *, config, size, operations):
        self.config, self.size, self.operations = config, size, operations
        pauses = dict.fromkeys(_PAUSED, In(size))
        super().__init__({"op": In(ring_layout(config).size), **pauses, "moves": Out(1), "waits": Out(1)})

    def elaborate(self, platform):
        m = Module()
        units = [RingUnit(config=self.config) for _ in range(self.size)]
        moves, waits = Signal(self.size), Signal(self.size)
        for rank, unit in enumerate(units):
            m.submodules[f"unit_{rank}"] = unit
            following = units[(rank + 1) % self.size]
            begun, ended = Signal(range(self.operations + 1)), Signal(range(self.operations + 1))
            accepted = unit.port.op.valid & unit.port.op.ready
            m.d.comb += [
                unit.running.eq(1),
                unit.position.rank.eq(rank),
                unit.position.size.eq(self.size),
                unit.port.op.payload.eq(self.op),
                unit.port.op.valid.eq(self.begin[rank] & (begun != self.operations)),
                unit.buffer.grant.eq(self.grant[rank]),
                unit.buffer.operand.eq(Const(0)),
                following.received.tdata.eq(unit.sent.tdata),
                following.received.tuser.eq(unit.sent.tuser),
                following.received.tlast.eq(unit.sent.tlast),
                following.received.tvalid.eq(unit.sent.tvalid & self.open[rank]),
                unit.sent.tready.eq(following.received.tready & self.open[rank]),
                moves[rank].eq(unit.events.moves | accepted | unit.port.done),
                waits[rank].eq(ended != self.operations),
            ]
            m.d.sync += [begun.eq(begun + accepted), ended.eq(ended + unit.port.done)]
        m.d.comb += [self.moves.eq(moves.any()), self.waits.eq(waits.any())]
        return m


def ring_script(config, *, size, segment, operations, before, pauses):
    """Returns SMT-LIB text that is satisfiable only if a ring can deadlock in the given situation.

    Parameters
    ----------
    config : hw.config.Config
    size : int
        Number of cores.
    segment : int
        Number of vectors per segment, m.
    operations : int
        Number of consecutive operations, with one round each.
    before : int
        Number of cycles without stalls after the reset.
    pauses : int
        Number of cycles after `before` in which any link or port may stall independently. The check starts after each of these
        cycles, and assumes that no stalls follow.
    """
    circuit = Circuit(RingOfUnits(config=config, size=size, operations=operations), MEMORIES)
    patience = config.latency + _MARGIN
    cycles = before + pauses + patience
    given = {("op", cycle): "op" for cycle in range(cycles + 1)}
    given |= {("rst", cycle): f"#b{int(cycle == 0)}" for cycle in range(cycles + 1)}
    everything = "#b" + "1" * size
    given |= {(port, cycle): everything for cycle in range(before + 1) for port in _PAUSED}
    op, width = ring_layout(config), circuit.inputs["op"]

    def field(name):
        low = op[name].offset
        return f"((_ extract {low + op[name].width - 1} {low}) op)"

    still = []
    for first in range(before + 1, before + pauses + 2):
        window = range(first, first + patience)
        free = (f"(= run.{port}.{cycle} {everything})" for cycle in window for port in _PAUSED)
        quiet = (f"(not (|dut_n moves| run.{cycle}))" for cycle in window)
        still.append(f"(and (|dut_n waits| run.{first}) {' '.join(free)} {' '.join(quiet)})")
    return "\n".join(
        [
            circuit.script,
            f"(declare-const op (_ BitVec {width}))",
            circuit.unroll("run", cycles, given),
            f"(assert (= {field('segment')} (_ bv{segment} {op['segment'].width})))",
            f"(assert (= {field('rounds')} (_ bv1 {op['rounds'].width})))",
            f"(assert (bvult {field('mode')} (_ bv{len(RingMode)} {op['mode'].width})))",
            f"(assert (or {' '.join(still)}))",
        ]
    )


def standstill_script(size, *, beyond=0):
    """Returns SMT-LIB text that is satisfiable only if a ring can deadlock, given only the claims of
    :mod:`sim.proofs.ring_credit` about each core.

    All vectors on the links have arrived. Each core either waits to send to a full FIFO, or waits to receive from its own empty
    FIFO, or has sent and received all vectors. `sent.i` and `taken.i` are the numbers of vectors that core i has sent and
    received. The size of a segment, the depth of the FIFOs and the total number of vectors are arbitrary numbers below 64.

    Parameters
    ----------
    size : int
        Number of cores.
    beyond : int
        Number of vectors by which a segment may exceed the depth of a FIFO. Any value but 0 makes a deadlock possible, which is a
        negative control.
    """

    def number(value):
        return f"(_ bv{value} {_WIDTH})"

    names = ["m", "depth", "total", *(f"{count}.{core}" for core in range(size) for count in ("sent", "taken"))]
    lines = [f"(declare-const {name} (_ BitVec {_WIDTH}))\n(assert (bvult {name} {number(_LESS_THAN)}))" for name in names]
    lines += [f"(assert (bvuge m {number(1)}))", f"(assert (bvule m (bvadd depth {number(beyond)})))"]
    ended = []
    for core in range(size):
        sent, taken = f"sent.{core}", f"taken.{core}"
        ahead = f"(bvsub {sent} {taken})"
        held, before = f"(bvsub {sent} taken.{(core + 1) % size})", f"(bvsub sent.{(core - 1) % size} {taken})"
        to_send = f"(and (bvult {sent} total) (= {held} depth) (bvsle {ahead} (bvsub m {number(1)})))"
        to_receive = f"(and (bvult {taken} total) (= {before} {number(0)}) (bvsge {ahead} {number(1)}))"
        ended.append(f"(and (= {sent} total) (= {taken} total))")
        lines.append(f"(assert (and (bvsge {held} {number(0)}) (bvsle {held} depth)))")
        lines.append(f"(assert (or {to_send} {to_receive} {ended[-1]}))")
    return "\n".join([*lines, f"(assert (not (and {' '.join(ended)})))"])
