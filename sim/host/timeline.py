"""What every unit of the core did in each cycle of a run, put together from what its probes saw."""

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
    """One instruction of a run. A moment is a cycle of the simulation; None: it did not come to that before the run ended.

    Parameters
    ----------
    pc : int
        Offset in region MODEL.
    opcode : Opcode
    fields : dict
        Field to value.
    layer : str or None
        The layer or stage that it belongs to.
    decoded : int
        The decoder takes it.
    offered, placed : int or None
        The dispatcher has it; it has its place among the instructions in flight, or, a SYNC, need not wait any more.
    begun, ended : int or None
        Its unit takes it, and ends it.
    passes : list of (int, int)
        Of a MATMUL: of each pass the cycles in which its first and last row enter the array.
    """

    pc: int
    opcode: object
    fields: dict
    layer: str | None
    decoded: int
    offered: int | None = None
    placed: int | None = None
    begun: int | None = None
    ended: int | None = None
    passes: list = field(default_factory=list)

    @property
    def unit(self):
        """Name of its unit, as in :func:`hw.control.dispatcher.units_of`; `control` for what none executes."""
        return INSTRUCTIONS[self.opcode].unit.name.lower()


@dataclass(frozen=True)
class Fetch:
    """Instructions asked for at once: `count` from `pc` on, in the cycle `asked`, the last beat of which came in `came`."""

    pc: int
    count: int
    asked: int
    came: int


@dataclass
class TracedRun:
    """One run of the core, from its first cycle, `begin`, to the one behind its last, `end`.

    Parameters
    ----------
    states : list of (str, int, int)
        `busy`, or the reason why no row entered the array, with the first cycle and the one behind the last.
    reads, writes : list of (str, int, int)
        Beats on the bus, one each cycle: whose they are, the first cycle and the one behind the last.
    fetches : list of Fetch
    instructions : list of TracedInstruction
    """

    begin: int
    end: int
    states: list
    reads: list
    writes: list
    fetches: list
    instructions: list


def _rows(changes, begin, end):
    """A probe's rows in these cycles, and the one before them."""
    first = bisect_right(changes, begin, key=lambda row: row["cycle"])
    return changes[max(0, first - 1) : bisect_left(changes, end, key=lambda row: row["cycle"])]


def _stretches(changes, value, begin, end, late=0):
    """`(value, first, behind the last)` of what lasts, within a run; `changes` are a probe's rows, whose `value` is a function
    of a row, None where there is nothing. `late` cycles pass before the probe sees it."""
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
    """The first reason counts, as in :class:`hw.control.run_control.RunControl`."""
    return "busy" if row["busy"] else next((name for bit, name in enumerate(STALLS) if row["stall"] >> bit & 1), None)


def timeline(seen, program):
    """The runs of a simulation, in order.

    Parameters
    ----------
    seen : dict
        From :func:`sim.rtl.probes.read_probes` with :func:`sim.rtl.core_probes.core_probes`.
    program : Program
        What ran, from its beginning, in each of them.

    Returns
    -------
    list of TracedRun
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
    stages = program.memory.batched.graph.stages
    instructions, step = [], program.config.instruction_bytes
    for row in seen["decode"]:
        opcode, fields = decode(int.from_bytes(program.model[row["pc"] : row["pc"] + 32], "little"))
        op = program.ops[row["pc"] // step] if row["pc"] // step < len(program.ops) else None
        layer = None if op is None else stages[op.parts[0][0] if op.parts else op.stage].name
        instructions.append(TracedInstruction(row["pc"], opcode, fields, layer, row["cycle"]))

    # The dispatcher has one at a time, the next one at the earliest a cycle after the last has its place.
    free, offers = 0, deque(offers)
    for instruction, row in zip_longest(instructions, seen["placed"][: len(instructions)]):
        while offers and offers[0][2] <= free:
            offers.popleft()
        instruction.offered = max(free, offers[0][1]) if offers else None
        if row is None:
            break
        assert row["pc"] == instruction.pc, "instructions have their places in the order of the program"
        instruction.placed, free = row["cycle"], row["cycle"] + 1

    for unit in {one.unit for one in instructions if f"begin_{one.unit}" in seen}:
        mine = [one for one in instructions if one.unit == unit and one.placed is not None]
        for name, moment in (("begun", f"begin_{unit}"), ("ended", f"end_{unit}")):
            for instruction, row in zip(mine, seen[moment]):
                setattr(instruction, name, row["cycle"])
    _add_passes(seen, [one for one in instructions if one.unit == Unit.MATMUL.name.lower()])
    return instructions


def _add_passes(seen, matmuls):
    """Passes are in the order of their instructions, each of which says how many it has."""
    rows = iter(zip(seen["first"], seen["last"]))
    for instruction in matmuls:
        for _ in range(instruction.fields["tiles0"] * instruction.fields["tiles1"]):
            if (row := next(rows, None)) is None:
                return
            instruction.passes.append((row[0]["cycle"], row[1]["cycle"]))
