"""Events that random jobs should reach: hazards of instructions, faults, ends of memories, channels under backpressure."""

import itertools
from collections import Counter, defaultdict

from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import Fault, Format, Opcode, records, space_depth, spaces_of

from .bench import CHANNELS

__all__ = ["expected_events", "program_events", "reached_events"]

#: Instructions back to which hazards are searched.
_DISTANCE = 3
#: Channels without backpressure: the core always accepts responses.
_READY = ("R", "B")
_HAZARDS = {("w", "r"): "RAW", ("r", "w"): "WAR", ("w", "w"): "WAW"}


def expected_events(config):
    """Returns the events of a core, as tuples of text."""
    found, accesses = set(), defaultdict(set)
    for record in records(config).values():
        for span in record.spans:
            accesses[span.space].add(span.use)
    for opcode, record in records(config).items():
        uses = {(before, span.use) for span in record.spans for before in accesses[span.space]}
        kinds = {kind for pair, kind in _HAZARDS.items() if pair in uses}
        # promise: hazards (hazards of each instruction, in runs that end and that fault)
        # A job that ends early keeps the function table, so that later jobs need not load it.
        ends = ("done",) if opcode is Opcode.LOAD_TABLE else ("done", "ended early")
        found |= {(opcode.name, kind, end) for kind in kinds for end in ends}
        found |= {(opcode.name, space, end) for space in _spaces(config, record) for end in ("first row", "last row")}
        if record.unit is not Unit.CONTROL and len(ends) > 1:
            # promise: checked-first (each fault after each instruction)
            found |= {(fault.name, "after", opcode.name) for fault in (Fault.ILLEGAL, Fault.ADDRESS, Fault.LENGTH)}
            if record.transfer:
                cause = Fault.BUS_READ if record.transfer.use == "r" else Fault.BUS_WRITE
                found.add((cause.name, "of", opcode.name))
    # promise: fault-ends (each fault)
    found |= {(fault.name, "fault") for fault in Fault if fault is not Fault.NONE and (config.ring or fault is not Fault.RING)}
    # promise: order-of-sums, data-order (each channel under backpressure)
    return found | {("stalled", name) for name in CHANNELS if name not in _READY and (config.ring or "ring" not in name)}


def _spaces(config, record):
    return [space for space in (*spaces_of(config), "table") if record.spans_of(space)]


def _spans(config, opcode, fields, cores):
    """Yields (space, use, first row, last row) of an instruction."""
    for span in records(config)[opcode].spans:
        values = dict.fromkeys(records(config)[opcode].widths, 0) | {"format": Format.BFLOAT16} | fields
        if span.is_touched(values):
            first = values[span.base] // (config.n if span.space == "table" else 1)
            yield span.space, span.use, first, first + span.length(values, cores) - 1


def reached_events(config, session, results):
    """Returns how often a session's jobs reached each event. `results` are the results of the bench."""
    found = Counter()
    for trial, cores in zip(session.trials, results):
        fault = session.fault_of(cores[0])
        end = "done" if trial.after is not None else "ended early"
        found.update(program_events(config, trial.program, session.cores, end))
        found.update(("stalled", name) for core in cores for name, count in core.stalls.items() if count)
        if fault:
            found[fault[0], "fault"] += 1
            found.update(_fault_places(config, trial, fault))
    return found


def program_events(config, program, cores, end):
    """Yields the events of a program that ends as `end` says: its hazards, and accesses to the ends of memories."""
    recent = []
    for word in program:
        if isinstance(word, int):
            return
        opcode, fields = word
        spans = list(_spans(config, opcode, fields, cores))
        for space, use, first, last in spans:
            if not first:
                yield opcode.name, space, "first row"
            if last == space_depth(config, space) - 1:
                yield opcode.name, space, "last row"
            for other, before, low, high in itertools.chain(*recent):
                if other == space and (before, use) in _HAZARDS and low <= last and first <= high:
                    yield opcode.name, _HAZARDS[before, use], end
        recent = [*recent, spans][-_DISTANCE:]


def _fault_places(config, trial, fault):
    cause, pc = fault
    index = (pc - trial.first_pc) // config.instruction_bytes
    if cause.startswith("BUS") and 0 <= index < len(trial.program) and not isinstance(trial.program[index], int):
        yield cause, "of", trial.program[index][0].name
    elif trial.kind == "refused" and index:
        yield cause, "after", trial.program[index - 1][0].name
