"""Export of a recorded run to Chrome's trace event format, for Perfetto. A cycle is shown as a microsecond."""

import json

from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS
from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.sim.data.printable import printable
from amaranth_tpu.sim.data.whole_files import write_file

__all__ = ["trace_events", "write_trace"]

_CORE, _LAYERS = 1, 2  # processes, the format's term for groups of tracks
_UNITS = [unit.name.lower() for unit in Unit if unit is not Unit.CONTROL]
_FIRST = {_CORE: 11, _LAYERS: 101}  # number of the first track; track numbers are unique over all groups
_TRACKS = ("run", "array", "fetch", "dispatch", *_UNITS, "bus reads", "bus writes")
_POINTS = 500  # most points of a counter


def write_trace(path, runs):
    """Writes a file with the trace of some runs. Raises DataError if that fails.

    Parameters
    ----------
    path : path
    runs : list of sim.host.timeline.TracedRun
    """
    lines = ",\n".join(json.dumps(event) for event in trace_events(runs))
    write_file(path, f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'.encode())


def trace_events(runs):
    """Yields the events of the trace as dicts. Times are counted from the first cycle of the first run.

    The core's tracks are `run`, `array` (busy, or the stall reason), `fetch`, `dispatch`, and one track per unit with the
    instructions that it executed. A unit's slice starts when the unit has received the instruction and has finished the previous
    one. The slices of `matmul` are the cycles in which rows enter the array, per pass (category `pass`). `bus reads` and `bus
    writes` show beats, one per cycle (category `beats`). Each layer has its own track. Counters are percentages.
    """
    origin = runs[0].begin if runs else 0
    layers = list(dict.fromkeys(one.layer for run in runs for one in run.instructions if one.layer is not None))
    yield from _names(_CORE, "core", _TRACKS)
    yield from _names(_LAYERS, "layers", layers)
    window = max(16, 1 << (sum(run.end - run.begin for run in runs) // _POINTS).bit_length())
    flows = iter(range(1 << 62))
    for number, run in enumerate(runs):
        yield _slice("run", f"batch {number}", run.begin - origin, run.end - origin, "run", cycles=run.end - run.begin)
        for name, begin, end in run.states:
            meaning = "the array took a row" if name == "busy" else STALLS[name]
            yield _slice("array", name, begin - origin, end - origin, "array", meaning=meaning)
        yield from _fetch_slices(run, origin)
        yield from _instruction_slices(run, origin, flows)
        for track, stretches in (("bus reads", run.reads), ("bus writes", run.writes)):
            for name, begin, end in stretches:
                yield _slice(track, name, begin - origin, end - origin, "beats", beats=end - begin)
        yield from _layer_slices(run, origin, layers)
        yield from _counters(run, origin, window)


def _names(process, name, tracks):
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": process}}
    for number, track in enumerate(tracks):
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": process,
            "tid": _FIRST[process] + number,
            "args": {"name": printable(track)},
        }
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": process,
            "tid": _FIRST[process] + number,
            "args": {"sort_index": number},
        }


def _slice(track, name, begin, end, category, **arguments):
    return {
        "ph": "X",
        "pid": _CORE,
        "tid": _FIRST[_CORE] + _TRACKS.index(track),
        "ts": begin,
        "dur": end - begin,
        "name": name,
        "cat": category,
        "args": arguments,
    }


def _fetch_slices(run, origin):
    free = run.begin
    for fetch in run.fetches:
        begin, free = max(fetch.asked, free), fetch.came + 1
        arguments = {"pc": hex(fetch.pc), "instructions": fetch.count, "asked": fetch.asked - run.begin}
        yield _slice("fetch", f"{fetch.count} instructions", begin - origin, free - origin, "fetch", **arguments)


def _instruction_slices(run, origin, flows):
    free = dict.fromkeys(_UNITS, run.begin)
    for one in run.instructions:
        name, arguments = one.opcode.name, _arguments(one, run.begin)
        if one.offered is None:
            continue
        placed = run.end if one.placed is None else one.placed + 1
        yield _slice("dispatch", name, one.offered - origin, placed - origin, "dispatch", **arguments)
        if one.begun is None or (one.unit == "matmul" and not one.passes):
            continue
        unit, end = one.unit, run.end if one.ended is None else one.ended + 1
        begin = max(one.begun, free[unit])
        if one.passes:
            begin, end = one.passes[0][0], one.passes[-1][1] + 1
        free[unit] = end
        yield _slice(unit, name, begin - origin, end - origin, "instruction", **arguments)
        for number, (first, last) in enumerate(one.passes):
            yield _slice(unit, f"pass {number}", first - origin, last + 1 - origin, "pass", rows=last + 1 - first)
        arrow = {"name": "dispatched", "cat": "dispatched", "id": next(flows), "pid": _CORE}
        yield arrow | {"ph": "s", "tid": _FIRST[_CORE] + _TRACKS.index("dispatch"), "ts": one.placed - origin}
        yield arrow | {"ph": "f", "bp": "e", "tid": _FIRST[_CORE] + _TRACKS.index(unit), "ts": begin - origin}


def _arguments(one, begin):
    """Returns the details of an instruction as a dict: its fields, with names in place of codes, and the cycles of its progress,
    counted from `begin`."""
    record, fields = INSTRUCTIONS[one.opcode], {}
    for name, value in one.fields.items():
        names = {code.value: code.name for code in record.codes_of(name)}
        fields[name] = names.get(value, value)
    moments = {name: getattr(one, name) for name in ("decoded", "placed", "begun", "ended")}
    return {
        "pc": hex(one.pc),
        "layer": printable(one.layer or ""),
        **fields,
        **{name: moment - begin for name, moment in moments.items() if moment is not None},
    }


def _layer_slices(run, origin, layers):
    """Yields the slices of the layers' tracks. A layer lasts from the start of its first instruction in a unit to the end of its
    last. Cycles are counted from `origin`."""
    for number, layer in enumerate(layers):
        mine = [one for one in run.instructions if one.layer == layer and one.begun is not None]
        if mine:
            begin = min(one.begun for one in mine)
            end = max(run.end if one.ended is None else one.ended + 1 for one in mine)
            yield {
                "ph": "X",
                "pid": _LAYERS,
                "tid": _FIRST[_LAYERS] + number,
                "ts": begin - origin,
                "dur": end - begin,
                "name": printable(layer),
                "cat": "layer",
                "args": {"instructions": len(mine), "cycles": end - begin},
            }


def _counters(run, origin, window):
    rows = [(first, last + 1) for one in run.instructions for first, last in one.passes]
    for name, stretches in (
        ("array utilisation", rows),
        ("bus reads", [(begin, end) for _, begin, end in run.reads]),
        ("bus writes", [(begin, end) for _, begin, end in run.writes]),
    ):
        counts = [0] * -(-(run.end - run.begin) // window)
        for begin, end in stretches:
            for place in range((begin - run.begin) // window, (end - 1 - run.begin) // window + 1):
                first = run.begin + place * window
                counts[place] += min(end, first + window) - max(begin, first)
        for place, count in enumerate(counts):
            first = run.begin + place * window
            yield _count(name, "%", first - origin, 100 * count / min(window, run.end - first))
        yield _count(name, "%", run.end - origin, 0)
    changes = {}
    for one in run.instructions:
        if one.begun is not None and one.placed is not None:
            changes[one.placed] = changes.get(one.placed, 0) + 1
            end = run.end if one.ended is None else one.ended + 1
            changes[end] = changes.get(end, 0) - 1
    there = 0
    for moment in sorted(changes):
        there += changes[moment]
        yield _count("instructions", "in flight", moment - origin, there)


def _count(name, unit, moment, value):
    """Returns the event that sets a counter to `value` at cycle `moment`. The counter's track in Perfetto is named by `name` and
    `unit`."""
    return {"ph": "C", "pid": _CORE, "name": name, "ts": moment, "args": {unit: value}}
