"""The timeline of a program's execution, per unit of the core, built from recorded probes."""

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import zip_longest

from amaranth_tpu.hw.bus.axi_reader import CLIENTS
from amaranth_tpu.hw.spec.encoding import decode
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS
from amaranth_tpu.hw.spec.registers import STALLS

__all__ = ["Fetch", "TracedInstruction", "TracedRun", "timeline"]


@dataclass
class TracedInstruction:
    """One executed instruction. Times are cycles of the simulation; a time is None if the execution ended before it."""

    pc: int  # offset of the instruction in region MODEL
    opcode: object
    fields: dict  # fields of the instruction, by name
    layer: str | None  # name of the layer or stage to which the instruction belongs, if known
    decoded: int  # cycle in which the decoder accepts the instruction
    #: offered, placed: Cycle in which the dispatcher receives the instruction, and cycle in which the instruction gets a slot for
    #: instructions in flight. For a SYNC: cycle in which it no longer waits.
    offered: int | None = None
    placed: int | None = None
    #: begun, ended: Cycles in which the unit starts and completes the instruction.
    begun: int | None = None
    ended: int | None = None
    #: List of (int, int). For a MATMUL: the cycles in which the first and the last row of each pass enter the array.
    passes: list = field(default_factory=list)

    @property
    def unit(self):
        """Returns the name of the instruction's unit, as in :func:`hw.control.dispatcher.units_of`. It is `control` for
        instructions without a unit."""
        return INSTRUCTIONS[self.opcode].unit.name.lower()


@dataclass(frozen=True)
class Fetch:
    """A fetch of `count` consecutive instructions starting at offset `pc`. The request was sent in cycle `asked`, and its last
    beat arrived in cycle `came`."""

    pc: int
    count: int
    asked: int
    came: int


@dataclass
class TracedRun:
    """The execution of one program, from its first cycle, `begin`, to the cycle after its last, `end`."""

    begin: int
    end: int
    #: List of (str, int, int). State of the core over time. The state is `busy`, or the reason why no row entered the array, with
    #: its first cycle and the cycle after its last.
    states: list
    #: reads, writes: List of (str, int, int). Beats on the bus, one per cycle: the client of the bus, the cycle of the beat, and
    #: the next cycle.
    reads: list
    writes: list
    fetches: list
    instructions: list


def _rows(changes, begin, end):
    first = bisect_right(changes, begin, key=lambda row: row["cycle"])
    return changes[max(0, first - 1) : bisect_left(changes, end, key=lambda row: row["cycle"])]


def _stretches(changes, value, begin, end, late=0):
    """Returns the intervals in which a value is constant, as `(value, first cycle, cycle after the last)`.

    `changes` are the records of a probe. `value(record)` computes the value; None starts no interval. The probe lags by `late`
    cycles.
    """
    found, changes = [], _rows(changes, begin + late, end + late)
    for row, following in zip(changes, [*changes[1:], None]):
        first = max(begin, row["cycle"] - late)
        behind = end if following is None else min(end, following["cycle"] - late)
        if (kind := value(row)) is None or first >= behind:
            continue
        if found and found[-1][0] == kind and found[-1][2] == first:
            first = found.pop()[1]
        found.append((kind, first, behind))
    return found


def _state(row):
    """Returns the state of the core in a record. The first stall reason wins, as in
    :class:`hw.control.run_control.RunControl`."""
    return "busy" if row["busy"] else next((name for bit, name in enumerate(STALLS) if row["stall"] >> bit & 1), None)


def timeline(seen, program):
    """Builds the timelines of all program executions in a simulation, in order.
    Returns a list of :class:`TracedRun`.

    Parameters
    ----------
    seen : dict
        Recordings from :func:`sim.rtl.probes.read_probes` with :func:`sim.rtl.core_probes.core_probes`.
    program : Program
        The program, which every execution starts from its beginning.
    """
    runs = []
    for _, begin, end in _stretches(seen["active"], lambda row: row["active"] or None, 0, 1 << 64):
        here = {name: [row for row in _rows(rows, begin, end) if row["cycle"] >= begin] for name, rows in seen.items()}
        offers = _stretches(seen["offered"], lambda row: row["valid"] or None, begin, end)
        runs.append(
            TracedRun(
                begin,
                end,
                _stretches(seen["state"], _state, begin, end, late=1),
                _stretches(seen["reads"], lambda row: CLIENTS[row["client"]] if row["beat"] else None, begin, end),
                _stretches(seen["writes"], lambda row: "store" if row["beat"] else None, begin, end),
                _fetches(here, program.config),
                _instructions(here, offers, program),
            )
        )
    return runs


def _fetches(seen, config):
    beats = config.instruction_bytes // config.bus_bytes
    came = [row["cycle"] for row in seen["fetched"]]
    fetches, count = [], 0
    for row in seen["asked"]:
        pc, count = count * config.instruction_bytes, count + row["count"]
        if count * beats <= len(came):
            fetches.append(Fetch(pc, row["count"], row["cycle"], came[count * beats - 1]))
    return fetches


def _instructions(seen, offers, program):
    stages = program.memory.network.stages
    instructions, step = [], program.config.instruction_bytes
    for row in seen["decode"]:
        opcode, fields = decode(int.from_bytes(program.model[row["pc"] : row["pc"] + 32], "little"))
        op = program.ops[row["pc"] // step] if row["pc"] // step < len(program.ops) else None
        layer = None if op is None else stages[op.parts[0][0] if op.parts else op.stage].name
        instructions.append(TracedInstruction(row["pc"], opcode, fields, layer, row["cycle"]))

    # The dispatcher holds one instruction at a time. It receives the next at least one cycle after the previous one got its slot.
    free, offers = 0, deque(offers)
    for instruction, row in zip_longest(instructions, seen["placed"][: len(instructions)]):
        while offers and offers[0][2] <= free:
            offers.popleft()
        instruction.offered = max(free, offers[0][1]) if offers else None
        if row is None:
            break
        assert row["pc"] == instruction.pc, "instructions get their slots in program order"
        instruction.placed, free = row["cycle"], row["cycle"] + 1

    for unit in {one.unit for one in instructions if f"begin_{one.unit}" in seen}:
        mine = [one for one in instructions if one.unit == unit and one.placed is not None]
        for name, moment in (("begun", f"begin_{unit}"), ("ended", f"end_{unit}")):
            for instruction, row in zip(mine, seen[moment]):
                setattr(instruction, name, row["cycle"])
    _add_passes(seen, [one for one in instructions if one.unit == Unit.MATMUL.name.lower()])
    return instructions


def _add_passes(seen, matmuls):
    """Assigns passes to their MATMUL instructions. Passes occur in the order of the instructions."""
    rows = iter(zip(seen["first"], seen["last"]))
    for instruction in matmuls:
        for _ in range(instruction.fields["tiles0"] * instruction.fields["tiles1"]):
            if (row := next(rows, None)) is None:
                return
            instruction.passes.append((row[0]["cycle"], row[1]["cycle"]))
