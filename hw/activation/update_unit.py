"""The update unit: accumulators and bias rows -> stochastic gradient descent with momentum -> update memory."""

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from ..lib.hierarchy import instantiate
from ..spec.memory_ports import bias_rows_port, sums_port, updates_port
from ..spec.unit_ports import unit_port
from .update_lane import UpdateLane, UpdateTimes

__all__ = ["UpdateUnit", "update_cycles", "update_times"]


def update_cycles(n, lanes):
    """Returns the cycles for each row of UPDATE: one for each group of lanes, and at least two, to read V and W."""
    return max(2, n // lanes)


def update_times(n, lanes, lead, latency):
    """Returns the :class:`.UpdateTimes` of the unit's lanes. V' waits for a cycle if W would otherwise be read in the same cycle
    as V of a later row."""
    return UpdateTimes(lead, latency, int(UpdateTimes(lead, latency, 0).w % update_cycles(n, lanes) == 0))


class UpdateUnit(wiring.Component):
    """The unit that executes UPDATE operations, in order.

    A row takes :func:`update_cycles` cycles, one for each group of lanes, and an operation follows the one before it without a
    gap. Rows begin in every `update_cycles`-th cycle only, so that V and W are never read in the same cycle. The unit does not
    stall. The steps of a group of lanes, in cycles::

        0                          the row of V is read (first group only)
        1                          `held_v` takes V
        2                          `v` takes the lanes of the group
        3                          V enters its lane
        1 + g                      the row of G is read (first group only); the accumulators hold it until the next row
        w                          the row of W is read (first group only)
        3 + result                 V' and W' are written

    `g`, `w` and `result` are the times of :func:`update_times`.

    Parameters
    ----------
    n, lanes : int
        Lanes of a row, and of a group.
    activate : layout
        :func:`hw.spec.operations.activate_layout` of a core with update lanes.
    lead, latency : int
        Latencies of a cell.

    Members
    -------
    port : unit port of activate, in
        See :func:`hw.spec.unit_ports.unit_port`; `done` comes one cycle after the last write.
    sums : sums port, out
        To the accumulators; see :func:`hw.spec.memory_ports.sums_port`.
    biases : bias rows port, out
        To the bias rows; see :func:`hw.spec.memory_ports.bias_rows_port`.
    updates : updates port, out
        To the update memory; see :func:`hw.spec.memory_ports.updates_port`.
    """

    def __init__(self, *, n, lanes, activate, lead, latency):
        self.n, self.lanes, self.lead, self.latency = n, lanes, lead, latency
        self.cycles = update_cycles(n, lanes)
        self.times = update_times(n, lanes, lead, latency)
        self._groups = n // lanes
        self._step = data.StructLayout(
            {
                "valid": 1,
                "first": 1,
                "last": 1,
                "group": range(max(2, self._groups)),
                "acc": activate["acc"].shape,
                "bias": activate["bias"].shape,
                "row": activate["update_row"].shape,
                "rate": 16,
                "slot": activate["tag"].shape["slot"].shape,
            }
        )
        super().__init__(
            {
                "port": In(unit_port(activate)),
                "sums": Out(sums_port(activate["acc"].shape, n)),
                "biases": Out(bias_rows_port(activate["bias"].shape, n)),
                "updates": Out(updates_port(activate["update_row"].shape, n, self._groups)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        now, of_v, momentum = self._walk(m)
        steps = [now]
        for cycle in range(3 + self.times.result):
            later = Signal(self._step, name=f"step_{cycle}")
            m.d.sync += later.eq(steps[-1])
            steps.append(later)
        g, w, n = 1 + self.times.g, self.times.w, self.n

        def reads(step):
            return step.valid & step.first

        m.d.comb += [
            self.sums.row.eq(steps[g].acc),
            self.sums.read.eq(reads(steps[g])),
            self.biases.row.eq(Mux(reads(now), of_v, steps[w].bias)),
            self.biases.read.eq(reads(now) | reads(steps[w])),
        ]
        held_v, held_w = Signal(16 * n, reset_less=True), Signal(32 * n, reset_less=True)
        with m.If(steps[1].first):
            m.d.sync += held_v.eq(Cat(self.biases.data.word_select(2 * lane + 1, 16) for lane in range(n)))
        with m.If(steps[w + 1].first):
            m.d.sync += held_w.eq(self.biases.data)
        operands = {"v": (held_v, 16, 2), "g": (self.sums.data, 32, g + 1), "w": (held_w, 32, w + 2)}
        taken = {}
        for name, (row, width, cycle) in operands.items():
            taken[name] = Signal(width * self.lanes, name=name, reset_less=True)
            groups = Array(row.word_select(group, width * self.lanes) for group in range(self._groups))
            m.d.sync += taken[name].eq(groups[steps[cycle].group] if self._groups > 1 else row)
        end = steps[-1]
        for lane in range(self.lanes):
            instantiate(
                m,
                platform,
                lambda: UpdateLane(lead=self.lead, latency=self.latency, wait=self.times.wait),
                name=f"lane_{lane}",
                module="tpu_update_lane",
                **{name: taken[name].word_select(lane, width) for name, (_, width, _) in operands.items()},
                momentum=momentum,
                rate=steps[3 + self.times.rate].rate,
                o=self.updates.data.word_select(lane, 48),
            )
        m.d.comb += [
            self.updates.row.eq(end.row),
            *(self.updates.write[group].eq(end.valid & (end.group == group)) for group in range(self._groups)),
        ]
        m.d.sync += [self.port.done.eq(end.valid & end.last), self.port.done_slot.eq(end.slot)]
        return m

    def _walk(self, m):
        """Adds the address generator: one step for each group of lanes of each row. Returns the step, the bias row of V, and the
        factor of V, three cycles later."""
        op, now = self.port.op, Signal(self._step)
        running, left = Signal(), Signal(len(op.p.rows))
        cycle, of_v, factor = Signal(range(self.cycles)), Signal.like(op.p.bias), Signal(16)
        row_ends = cycle == self.cycles - 1
        m.d.comb += [
            now.valid.eq(running & ((cycle < self._groups) if self._groups < self.cycles else 1)),
            now.first.eq(running & (cycle == 0)),
            now.last.eq((left == 1) & (cycle == self._groups - 1)),
            now.group.eq(cycle if self._groups > 1 else 0),
            op.ready.eq(row_ends & (~running | (left == 1))),
        ]
        places = {name: Signal.like(now[name], name=name) for name in ("acc", "bias", "row")}
        rate, slot = Signal(16), Signal.like(now.slot)
        m.d.comb += [now.rate.eq(rate), now.slot.eq(slot), *(now[name].eq(value) for name, value in places.items())]
        m.d.sync += cycle.eq(cycle + 1)
        with m.If(row_ends):
            m.d.sync += [left.eq(left - 1), of_v.eq(of_v + 1), *(place.eq(place + 1) for place in places.values())]
        with m.If(op.ready):
            m.d.sync += [
                running.eq(op.valid),
                left.eq(op.p.rows),
                of_v.eq(op.p.bias + op.p.rows),
                places["acc"].eq(op.p.acc),
                places["bias"].eq(op.p.bias),
                places["row"].eq(op.p.update_row),
                rate.eq(op.p.rate),
                slot.eq(op.p.tag.slot),
                factor.eq(op.p.momentum),
            ]
        for stage in range(3):
            later = Signal(16, name=f"momentum_{stage}", reset_less=True)
            m.d.sync += later.eq(factor)
            factor = later
        return now, of_v, factor
