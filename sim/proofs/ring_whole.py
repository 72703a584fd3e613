"""Whole rings, bounded: from a reset, with any pauses of links and ports for some cycles, no ring stands still.

The question is SMT-LIB text about all ring units and link FIFOs of the RTL together. It can be satisfied only by pauses after
which nothing holds any core up and nothing moves, though an operation is under way. Vectors, pauses, the mode and the rows are
symbolic; so are the moments at which each core begins its operations.
"""

from amaranth import Const, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.spec.operations import ring_layout

from .smt import MEMORIES, Circuit

__all__ = ["RingOfUnits", "ring_script"]

#: Cycles from a pause's end, beyond the pipeline's latency, in which something must move: an operation begins in five of them.
_MARGIN = 8
#: Numbers of vectors, as bits of which differences do not wrap: with more of them the solver takes many times as long.
_WIDTH, _LESS_THAN = 8, 64
_PAUSED = ("begin", "open", "grant")


class RingOfUnits(wiring.Component):
    """Ring units of which each one's link goes into the next one's FIFO; each executes the same operations.

    Parameters
    ----------
    config : hw.config.Config
    size : int
        Units.
    operations : int
        How many each executes.

    Members
    -------
    op : operation, in
        :func:`hw.spec.operations.ring_layout`.
    begin, open, grant : `size` bits, in
        This unit's next operation is offered; its link is not held up; its port is granted.
    moves : 1, out
        Something moved in any unit.
    waits : 1, out
        A unit has not ended its operations.
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
                unit.rank.eq(rank),
                unit.size.eq(self.size),
                unit.port.op.payload.eq(self.op),
                unit.port.op.valid.eq(self.begin[rank] & (begun != self.operations)),
                unit.grant.eq(self.grant[rank]),
                unit.operand.eq(Const(0)),
                following.received.tdata.eq(unit.sent.tdata),
                following.received.tuser.eq(unit.sent.tuser),
                following.received.tlast.eq(unit.sent.tlast),
                following.received.tvalid.eq(unit.sent.tvalid & self.open[rank]),
                unit.sent.tready.eq(following.received.tready & self.open[rank]),
                moves[rank].eq(unit.moves | accepted | unit.port.done),
                waits[rank].eq(ended != self.operations),
            ]
            m.d.sync += [begun.eq(begun + accepted), ended.eq(ended + unit.port.done)]
        m.d.comb += [self.moves.eq(moves.any()), self.waits.eq(waits.any())]
        return m


def ring_script(config, *, size, segment, operations, before, pauses):
    """SMT-LIB text that can be satisfied only if a ring stands still.

    Parameters
    ----------
    config : hw.config.Config
    size : int
        Cores.
    segment : int
        Vectors of a segment, m.
    operations : int
        Each of one round, one behind the other.
    before : int
        Cycles from the reset in which nothing is held up.
    pauses : int
        Cycles behind them in which everything may be, each in its own way; after each of them, nothing may.
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
    """SMT-LIB text that can be satisfied only if cores for which the claims of :mod:`sim.proofs.ring_credit` hold can all wait.

    All that is on the links has arrived. A core waits to send, and the FIFO behind its link is full; or it waits to receive, and
    its own FIFO is empty; or it has sent and taken as many vectors as each of the ring does in all. `sent.i` and `taken.i` are
    those of core i, for any segment, any depth of the FIFOs and any numbers below 64.

    Parameters
    ----------
    size : int
        Cores.
    beyond : int
        Vectors by which a segment may be longer than a FIFO is deep: anything but 0 is wrong.
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
