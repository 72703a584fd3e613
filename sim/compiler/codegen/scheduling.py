"""List scheduling of a program's instructions. Weights are loaded before their use, and an instruction that is ready does not
wait for an earlier one that is not."""

from math import inf

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode

from ...golden.progress import Progress, touched
from ..timing.units import MATMUL, STORE, UNITS
from ..tuning import STARTING

__all__ = ["ordered", "completes", "STARTING"]


def ordered(ops, timeline, eager, late=0):
    """Returns the instructions sorted by start time. `timeline` has the start times for a core without dispatch cycles. `eager`
    is the number of operand blocks that are loaded before the first weights. STOREs are dispatched up to `late` cycles later: if
    the vector port is busy, STOREs fill their queue, and no instruction is dispatched.

    In this order, an instruction that is ready does not queue behind one that is not. LOAD_WEIGHTS stay in order and precede the
    MATMULs that use their tiles. A LOAD_WEIGHTS that waits for another instruction delays the MATMULs after it; other
    LOAD_WEIGHTS move earlier.
    """
    keys: list[tuple[float, float]] = []
    latest = [0] * UNITS  # a unit executes its instructions in their order
    for index, (op, start) in enumerate(zip(ops, timeline.starts)):
        latest[op.unit] = max(latest[op.unit], start)
        keys.append((latest[op.unit], index))
    loads = [index for index, op in enumerate(ops[:64]) if op.opcode is Opcode.LOAD]
    weights = [index for index, op in enumerate(ops) if op.opcode is Opcode.LOAD_WEIGHTS]
    for number, index in enumerate(weights[:STARTING]):
        if number + eager < len(loads):
            keys[index] = max(keys[index], (keys[loads[number + eager]][0], loads[number + eager] + 0.5))
    for before, index in zip(weights, weights[1:]):
        keys[index] = max(keys[index], (keys[before][0], index))
    held = min(keys)
    for index, op in enumerate(ops):
        if op.opcode is Opcode.LOAD_WEIGHTS and op.waits:
            held = max(held, keys[index])
        elif op.unit == MATMUL:
            keys[index] = max(keys[index], held)
    later = max(keys)
    for index in reversed(range(len(ops))):
        if ops[index].unit == MATMUL:
            later = min(later, (keys[index][0], index - 0.5))
        elif ops[index].opcode is Opcode.LOAD_WEIGHTS:
            keys[index] = later = min(keys[index], later)
    if late:
        _delay_stores(ops, keys, late)
    return [ops[index] for index in sorted(range(len(ops)), key=lambda index: (keys[index], index))]


def _delay_stores(ops, keys, late):
    """Adds up to `late` to the keys of STOREs. Each precedes the instructions that wait for it."""
    stores = [index for index, op in enumerate(ops) if op.unit == STORE]
    ends = [inf] * (len(stores) + 1)
    for index, op in enumerate(ops):
        for unit, need in op.waits:
            if unit == STORE:
                ends[need - 1] = min(ends[need - 1], keys[index][0])
    for number in reversed(range(len(stores))):
        ends[number] = min(ends[number], ends[number + 1])
        start, index = keys[stores[number]]
        keys[stores[number]] = max(start, min(start + late, ends[number] - 0.5)), index


def completes(ops, config, cores=1):
    """Returns True if a program with this order of instructions completes without a deadlock, and each instruction follows those
    that it waits for."""
    progress, issued = Progress(config), [0] * UNITS
    for op in ops:
        if any(issued[unit] < need for unit, need in op.waits):
            return False
        issued[op.unit] += 1
        host = INSTRUCTIONS[op.opcode].moved(config.n, op.fields) * config.vector_bytes
        if not progress.dispatch(op.opcode, op.fields, touched(op.opcode, op.fields, host, cores), lambda: None):
            return False
    return progress.at_rest
