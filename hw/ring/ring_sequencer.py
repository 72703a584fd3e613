"""The sequencer of the ring unit. It defines the order in which a core works on the segments of a ring operation."""

import functools
import operator

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from ..spec.isa import RingMode
from ..spec.operations import link_user_layout, ring_layout
from ..spec.registers import MOST_CORES

__all__ = ["RingSequencer", "ring_task"]


def ring_task(config):
    """Returns the layout of a task, the work on one vector.

    `own` reads a vector from row `source` of the unified buffer, and `receive` takes one from the link. With both, the two are
    added. The result is sent, or written to row `target`, or both. `last` marks the last vector of a segment, and `end` the last
    vector of the operation. `user` is the `tuser` of the received and of the sent vector.
    """
    row = ring_layout(config)["buffer"].shape
    return data.StructLayout(
        {
            **dict.fromkeys(("own", "receive", "send", "write", "last", "end"), 1),
            "user": link_user_layout(),
            "source": row,
            "target": row,
        }
    )


class RingSequencer(wiring.Component):
    """A sequencer that splits an operation into tasks, one per vector. The first task follows four cycles after the operation.

    In step t of a round, the core works on segment (rank - t) mod size. The steps of an all-reduce are:

    - Step 0: the core sends its own segment.
    - Steps 1 to size - 1: it adds its own segment to the received one, and sends the sum. The sum of step size - 1 is complete,
      and is also written.
    - Steps size to 2 size - 2: it writes the received segment, and sends it on, except in the last step.

    REDUCE_SCATTER ends with step size - 1, in which it does not send. ALL_GATHER starts with step size - 1, in which the core's
    own segment takes the place of the sum. A reset restarts the round number at 0.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    i : stream of operations, in
        :func:`hw.spec.operations.ring_layout`.
    rank : In(range(8)), size : In(range(9))
        Rank of the core, and number of cores in the ring.
    o : stream of tasks, out
        :func:`ring_task`.
    """

    def __init__(self, *, config):
        self.config = config
        super().__init__(
            {
                "i": In(stream.Signature(ring_layout(config))),
                "rank": In(range(MOST_CORES)),
                "size": In(range(MOST_CORES + 1)),
                "o": Out(stream.Signature(ring_task(config))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        layout, task = ring_layout(self.config), self.o.p
        op = Signal(layout)
        row = layout["buffer"].shape
        scatters, gathers = op.mode == RingMode.REDUCE_SCATTER, op.mode == RingMode.ALL_GATHER
        top = Signal(range(MOST_CORES))  # number of the last segment

        # Values derived from the operation before its first task. The product of the stride and a factor of at most three bits is
        # needed twice.
        factor, product = Signal(range(MOST_CORES)), Signal(row)
        m.d.sync += product.eq(
            functools.reduce(operator.add, (Mux(bit, op.stride << place, 0) for place, bit in enumerate(factor)))
        )
        first_step, last_step, first_segment = Signal(4), Signal(4), Signal(range(MOST_CORES))
        apart = Signal(row)
        wrap, back = Signal(row), Signal(row)  # rows back to the previous segment, from segment 0 and from others

        # Position of the current task.
        step, segment, index, rounds = Signal(4), Signal(range(MOST_CORES)), Signal(layout["segment"].shape), Signal(16)
        last_index = Signal.like(index)
        place, local, round_start = Signal(row), Signal(row), Signal(row)
        last, ends_round, moves = Signal(), Signal(), Signal()
        working = Signal()
        number = Signal.like(task.user.round)
        own, writes = step < self.size, step + 1 >= self.size
        m.d.comb += [
            last.eq(index == last_index),
            ends_round.eq(last & (step == last_step)),
            self.o.valid.eq(working),
            moves.eq(working & self.o.ready),
            task.own.eq(own),
            task.receive.eq(step != first_step),
            task.send.eq(step != last_step),
            task.write.eq(writes),
            task.last.eq(last),
            task.end.eq(ends_round & (rounds == 1)),
            task.source.eq(Mux(gathers, local, place)),
            task.user.segment.eq(segment),
            task.user.mode.eq(op.mode),
            task.user.round.eq(number),
            task.target.eq(Mux(scatters, local, Mux(gathers, place, place + apart))),
        ]
        with m.If(moves):
            m.d.sync += [
                index.eq(Mux(last, 0, index + 1)),
                place.eq(Mux(ends_round, round_start + op.segment, place - Mux(last, Mux(segment == 0, wrap, back), ~0))),
            ]
            # ALL_GATHER reads consecutive rows, and REDUCE_SCATTER writes consecutive rows.
            with m.If(Mux(gathers, own, writes)):
                m.d.sync += local.eq(local + 1)
            with m.If(last):
                m.d.sync += [step.eq(step + 1), segment.eq(Mux(segment == 0, top, segment - 1))]
            with m.If(ends_round):
                m.d.sync += [
                    step.eq(first_step),
                    segment.eq(first_segment),
                    round_start.eq(round_start + op.segment),
                    rounds.eq(rounds - 1),
                    number.eq(number + 1 + task.end),
                ]

        with m.FSM(name="operation"):
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [op.eq(self.i.payload), top.eq(self.size - 1), factor.eq(self.size - 1)]
                with m.If(self.i.valid):
                    m.next = "WRAP"

            with m.State("WRAP"):
                held = Mux(self.rank == top, 0, self.rank + 1)
                m.d.sync += [
                    first_segment.eq(Mux(gathers, held, self.rank)),
                    factor.eq(Mux(gathers, held, self.rank)),
                    first_step.eq(Mux(gathers, top, 0)),
                    last_step.eq(Mux(scatters, top, top << 1)),
                    last_index.eq(op.segment - 1),
                    apart.eq(op.result - op.buffer),
                ]
                m.next = "PLACE"

            with m.State("PLACE"):
                m.d.sync += [
                    wrap.eq(last_index - product),
                    back.eq(last_index + op.stride),
                    local.eq(Mux(gathers, op.buffer, op.result)),
                    place.eq(Mux(gathers, op.result, op.buffer)),
                    step.eq(first_step),
                    segment.eq(first_segment),
                    index.eq(0),
                    rounds.eq(op.rounds),
                ]
                m.next = "START"

            with m.State("START"):
                m.d.sync += [place.eq(place + product), round_start.eq(place + product), working.eq(1)]
                m.next = "WORK"

            with m.State("WORK"):
                with m.If(moves & task.end):
                    m.d.sync += working.eq(0)
                    m.next = "IDLE"
        return m
