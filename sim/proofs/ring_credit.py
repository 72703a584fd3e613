"""Formal proofs of the ring's flow control: the number of vectors that a unit may send ahead of the vectors that it receives.

Each claim is SMT-LIB text that is satisfiable only if the claim is false. The proofs are by induction over cycles of the RTL's
netlist, with arbitrary inputs: an invariant holds after a reset, and each cycle preserves it. The invariant therefore holds in
all later cycles. A run is the time in which the core executes a program.
"""

import itertools
import re

from amaranth_tpu.hw.ring.ring_sequencer import ring_task
from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.spec.operations import ring_layout

from .smt import MEMORIES, Circuit
from .smt_terms import WIDTH, Claim, State, both, count, implies, number, total

__all__ = ["Claim", "unit_circuit", "unit_claims"]

#: Number of rows in the memory of the ring unit's task queue. One more task is in the queue's output register.
_ROWS = RingUnit.prefetch - 1

_IDLE, _PLACE, _START, _WORK = 0, 2, 3, 4


class _RingState(State):
    """SMT-LIB terms for the ring unit in one cycle.

    `ahead` is the number of vectors sent minus the number received. `segment` is the number of vectors per segment of the last
    operation.
    """

    def __init__(self, circuit, config, cycle):
        super().__init__(circuit, cycle)
        self.config = config
        self.ahead, self.segment = f"ahead.{cycle}", f"segment.{cycle}"
        self.spared = self.flag("spared")
        spare = self._task("spare_flags", self.spared)
        last, *others = [self._task(f"stage_{stage}", self.flag(f"valid_{stage}")) for stage in range(config.latency)][::-1]
        self.tasks = [spare, last, *others]
        # The oldest task may have been sent already, while its write is still pending.
        self.oldest = {flag: f"(ite {self.spared} {spare[flag]} {last[flag]})" for flag in ("there", "send")}
        self.tvalid = self.flag("sent__tvalid")
        behind = [both(self.spared, last["there"], last["send"]), *(both(task["there"], task["send"]) for task in others)]
        self.under_way = total(count(self.tvalid), *map(count, behind))
        self.begun = f"(bvadd {self.ahead} {self.under_way})"
        self.queued = [self._task("tasks.r_data", self.flag("tasks.r_rdy")), *map(self._queued, range(_ROWS))]

    def _bits(self, name, flag):
        return self.bit(name, ring_task(self.config)[flag].offset)

    def _task(self, name, there):
        return {"there": there, **{flag: self._bits(name, flag) for flag in ("own", "receive", "send", "end")}}

    def _queued(self, index):
        """Returns the flags of the task at `index` in the memory of the queue. Index 0 follows the task in the output
        register."""
        found = {"there": f"(bvugt {self.number('tasks.inner_level', _ROWS.bit_length())} {number(index)})"}
        for flag in ("own", "receive", "send", "end"):
            term = "false"
            for row in range(_ROWS):
                term = f"(ite {self._at('r_port', row - index)} {self._bits(f'tasks.storage[{row}]', flag)} {term})"
            found[flag] = term
        return found

    def _at(self, port, row):
        width = (_ROWS - 1).bit_length()
        return f"(= {self.field(f'tasks.{port}__addr', 0, width)} (_ bv{row % _ROWS} {width}))"

    def _rows(self):
        """Yields the invariants of the queue's memory. They concern the number of used rows, and the addresses at the memory's
        ports."""
        level = self.number("tasks.inner_level", _ROWS.bit_length())
        yield f"(bvule {level} {number(_ROWS)})"
        yield f"(or {' '.join(self._at('r_port', row) for row in range(_ROWS))})"
        for used, row in itertools.product(range(_ROWS + 1), range(_ROWS)):
            yield implies(both(f"(= {level} {number(used)})", self._at("r_port", row)), self._at("w_port", row + used))

    def _credits(self, made):
        """Returns the invariants of the credit, which is the number of vectors sent or to be sent minus the number received. It
        stays from 0 to a segment while the queued tasks begin in order. At the end it equals `made`."""
        terms, credit, segment = [], self.begun, self.segment
        for task in self.queued:
            terms.append(implies(both(task["there"], task["receive"]), f"(bvuge {credit} {number(1)})"))
            terms.append(f"(bvule {credit} {segment})")
            change = f"(bvsub {count(task['send'])} {count(task['receive'])})"
            credit = f"(bvadd {credit} (ite {task['there']} {change} {number(0)}))"
        return [*terms, f"(bvule {credit} {segment})", f"(= {credit} {made})"]

    def begins_in_runs(self):
        return implies(self.flag("may_begin"), self.flag("active"))

    def invariant(self):
        op, segment = ring_layout(self.config), self.segment
        state = self.number("sequencer.operation_state", 3)
        in_state = {code: f"(= {state} {number(code)})" for code in (_IDLE, _START, _WORK)}
        first, last, step = (self.number(f"sequencer.{name}", 4) for name in ("first_step", "last_step", "step"))
        width = op["segment"].shape
        index, top = self.number("sequencer.index", width), self.number("sequencer.top", 3)
        latched = f"((_ zero_extend {WIDTH - width}) {self.field('sequencer.op', op['segment'].offset, width)})"
        mode = self.field("sequencer.op", op["mode"].offset, 2)
        gathers, scatters = (f"(= {mode} (_ bv{m.value} 2))" for m in (RingMode.ALL_GATHER, RingMode.REDUCE_SCATTER))
        # Credit after all tasks issued by the sequencer have begun.
        at_work = (
            f"(ite (= {first} {last}) {number(0)} (ite (= {step} {first}) {index} "
            f"(ite (= {step} {last}) (bvsub {segment} {index}) {segment})))"
        )
        made = f"(ite {in_state[_WORK]} {at_work} {number(0)})"
        terms = [
            f"(bvult {segment} {number(1 << width)})",
            f"(bvule {state} {number(_WORK)})",
            f"(= {self.flag('sequencer.working')} {in_state[_WORK]})",
            implies(f"(not {in_state[_IDLE]})", self.flag("busy"), f"(= {latched} {segment})", f"(bvuge {segment} {number(1)})"),
            implies(
                f"(bvuge {state} {number(_PLACE)})",
                f"(= {first} (ite {gathers} {top} {number(0)}))",
                f"(= {last} (ite {scatters} {top} (bvadd {top} {top})))",
                f"(= (bvadd {self.number('sequencer.last_index', width)} {number(1)}) {segment})",
            ),
            implies(in_state[_START], f"(= {step} {first})", f"(= {index} {number(0)})"),
            implies(in_state[_WORK], f"(bvule {first} {step})", f"(bvule {step} {last})", f"(bvult {index} {segment})"),
            *self._rows(),
        ]
        # An offered vector belongs to the oldest task, which must be a task that sends. A write belongs to the oldest task too.
        terms.append(implies(self.tvalid, self.oldest["there"], self.oldest["send"]))
        terms.append(implies(self.flag("buffer__write"), self.oldest["there"]))
        # A task in the spare register stalls all later tasks.
        terms.append(f"(= {self.flag('advance')} (not {self.spared}))")
        terms.append(f"(= {self.flag('may_begin')} {both(self.flag('active'), self.flag('advance'))})")
        # No task follows the last task of an operation, and no tasks exist between operations.
        line = [*self.tasks, *self.queued]
        for place, task in enumerate(line):
            behind = (f"(not {other['there']})" for other in line[place + 1 :])
            terms.append(implies(both(task["there"], task["end"]), in_state[_IDLE], *behind))
            terms.append(implies(f"(not {self.flag('busy')})", f"(not {task['there']})"))
        terms += self._credits(made)
        # For progress: every vector of the core itself that a queued task needs has been read or requested, and an operation has
        # a last task.
        (coming,) = set(re.findall(r"\|dut_n (coming|vectors\.w_en|w_en\$\d+)\|", self._circuit.script))  # one register
        read = total(*(self.number(f"{name}.level", 3) for name in ("sources", "vectors")), count(self.flag(coming)))
        terms += [
            f"(= {read} {total(*(count(both(task['there'], task['own'])) for task in self.queued))})",
            implies(
                both(self.flag("busy"), in_state[_IDLE]),
                f"(or false {' '.join(both(task['there'], task['end']) for task in line)})",
            ),
        ]
        return both(*terms)


def _unit_script(circuit, config, assumptions, refuted, cycles=1):
    """Returns SMT-LIB text that is satisfiable if `refuted` can be false under the assumptions, over `cycles` cycles. The first
    cycle updates `ahead` and `segment` from the ports."""
    width = ring_layout(config)["segment"].shape
    payload = f"((_ extract {ring_layout(config)['segment'].offset + width - 1} {ring_layout(config)['segment'].offset})"
    payload += " run.port__op__payload.0)"
    offered = f"((_ zero_extend {WIDTH - width}) {payload})"
    now, then = State(circuit, 0), State(circuit, 1)
    accepted = both("(= run.port__op__valid.0 #b1)", now.flag("port__op__ready"))
    sort = f"(_ BitVec {WIDTH})"
    sends, takes = (count(then.flag(f"events__{name}")) for name in ("sends", "takes"))
    return "\n".join(
        [
            circuit.script,
            circuit.unroll("run", cycles),
            f"(declare-const ahead.0 {sort})",
            f"(declare-const segment.0 {sort})",
            f"(define-fun ahead.1 () {sort} (bvsub (bvadd ahead.0 {sends}) {takes}))",
            f"(define-fun segment.1 () {sort} (ite {accepted} {offered} segment.0))",
            f"(assert {implies(accepted, f'(bvuge {offered} {number(1)})')})",  # the decoder rejects 0
            *(f"(assert {term})" for term in assumptions),
            f"(assert (not {refuted}))",
        ]
    )


def _goes_on(circuit, config):
    """Returns the claim that the unit makes progress, over several cycles: its assumptions, its consequence, and the number of
    cycles."""
    cycles = config.latency + 5
    units = [_RingState(circuit, config, cycle) for cycle in range(cycles)]
    assumptions, ends = [units[0].invariant(), units[0].flag("active"), units[0].flag("busy")], []
    for cycle, unit in enumerate(units):
        head, after = unit.queued[0], State(circuit, cycle + 1)
        inputs = {"rst": 0, "running": 1, "buffer__grant": 1, "sent__tready": 1}
        assumptions += [f"(= run.{port}.{cycle} #b{value})" for port, value in inputs.items()]
        assumptions += [
            implies(both(head["there"], head["receive"]), unit.flag("link.o__valid")),
            f"(not {after.flag('fault__valid')})",
        ]
        ends += [after.flag("events__moves"), f"(not {after.flag('busy')})"]
    return assumptions, f"(or {' '.join(ends)})", cycles


def unit_circuit(config):
    """Returns the netlist of a ring unit as a :class:`.Circuit`."""
    return Circuit(RingUnit(config=config), MEMORIES)


def unit_claims(circuit, config, *, too_low=0):
    """Returns the claims about a ring unit. They hold for all operations with at least one vector per segment, all ranks, and all
    ring sizes.

    Parameters
    ----------
    circuit : Circuit
        Circuit from :func:`unit_circuit`.
    config : hw.config.Config
    too_low : int
        Number of vectors by which the claimed bound is below a segment. Any value but 0 makes the claim false, which is a
        negative control.
    """
    now, then = _RingState(circuit, config, 0), _RingState(circuit, config, 1)
    nothing = f"(= ahead.0 {number(0)})"
    begin = [nothing, f"(= segment.0 {number(0)})"]
    quiet = (f"(not {now.flag(name)})" for name in ("active", "sent__tvalid", "buffer__read"))
    stopped = ["(= run.rst.0 #b0)", *quiet, now.begins_in_runs()]
    runs = ["(= run.rst.0 #b0)", now.flag("active")]
    bound = f"(bvsub {now.segment} {number(too_low)})"
    head = now.queued[0]
    waits_to_receive = both(head["there"], head["receive"])
    claims = {
        "after any cycle, tasks may begin only in runs": ([], then.begins_in_runs()),
        "after a reset the invariant holds, with sent = consumed": (["(= run.rst.0 #b1)", *begin], then.invariant()),
        "and after a cycle outside a run without an offer or a read": ([*stopped, *begin], then.invariant()),
        "a cycle of a run keeps it": ([*runs, now.invariant()], then.invariant()),
        "0 <= sent + in flight - consumed": ([now.invariant()], f"(bvsge {now.begun} {number(0)})"),
        # promise: ring-ahead
        "sent - consumed <= m, and <= m - 1 while a vector is offered": (
            [now.invariant()],
            f"(bvsle (bvadd {now.ahead} {count(now.flag('sent__tvalid'))}) {bound})",
        ),
        "with nothing in flight, a unit that waits to receive has 1 <= sent - consumed": (
            [now.invariant(), f"(= {now.under_way} {number(0)})", waits_to_receive],
            f"(bvsge {now.ahead} {number(1)})",
        ),
        "between operations sent = consumed": ([now.invariant(), f"(not {now.flag('busy')})"], nothing),
        "with grants and without waits for links, it moves or ends within latency + 5 cycles": _goes_on(circuit, config),
    }
    return [Claim(text, _unit_script(circuit, config, *parts)) for text, parts in claims.items()]
