"""The scripts of register accesses with which hosts run random jobs."""

from amaranth_tpu.hw.spec.registers import REGISTER, registers_of, stalls_of

from .bench import NEVER, CoreJob

__all__ = ["ENDED", "write_script"]

#: Registers that a script reads at its end, before the counters of stalls.
ENDED = ("status", "fault_cause", "fault_pc", "cycles", "busy")
_QUIET, _FLUSH = 1 << REGISTER["status"].fields["quiet"][0], 1 << REGISTER["ring"].fields["flush"][0]


def _unusable(draw, given, failing, layout):
    """Returns the first and the last address without responses, and of errors, which a `failing` transfer accesses."""
    if given.silent:
        first = layout.places[given.silent][0]
        return (first, layout.bases[given.silent] + layout.ends[given.silent] - 1), CoreJob.errors
    if failing:
        first = layout.places[failing["region"].name][0] + failing["offset"]
        return CoreJob.silent, (first, first)
    name = "MODEL" if draw.chance(0.3) else str(draw.rng.choice(list(layout.places)))
    size = layout.ends[name] - layout.places[name][1]
    first = layout.places[name][0] + draw.below(size) // 32 * 32
    return CoreJob.silent, (first, first + int(draw.rng.choice([0, size // 2])))


def write_script(draw, core, given, rank, layout, target):
    """Writes the script of a job for one core: registers, start, interference, end. `target` has the fields of a transfer that
    fails, or is None. `draw` is the :class:`.Session` that draws the job."""
    kind = given.kind
    if given.silent or kind == "bus error":
        core.silent, core.errors = _unusable(draw, given, target, layout)
    if draw.is_dead or draw.chance(0.05):
        core.reset(2 + draw.below(3), alone=False)
    core.write("control", 2)
    core.poll("status", _QUIET)
    core.write("interrupt", 3)
    _try_registers(draw, core)
    for name, base in layout.bases.items():
        for part, value in (("base_low", base & NEVER), ("base_high", base >> 32), ("size", layout.ends[name])):
            core.write(f"{name.lower()}_{part}", value)
    core.write("pc", layout.places["MODEL"][1])
    core.write("timeout", 30_000 + draw.below(1 << 30) if kind == "clean" else 5000)
    if draw.config.ring:
        _enter_ring(draw, core, kind, rank)
    late = draw.cores > 1 and (draw.chance(0.2) or given.body and not rank)  # the link to this core fills meanwhile
    least = 2**13 if late and given.body and kind == "clean" else 0  # the other cores wait longer than the timeout of other jobs
    core.idle(least + draw.below(4000 if late else 60))
    if kind == "dead bus" and not given.body:
        core.hang_after = draw.below(60)
    core.write("control", 1)
    if kind in ("abort", "restart", "reset"):
        core.idle(draw.below(3000))
    if kind in ("abort", "restart"):
        core.write("control", 2)
    elif kind == "reset":
        core.reset(1 + draw.below(3), alone=True)
    if kind == "restart":
        core.write("control", 1)
    if kind not in ("abort", "reset"):
        core.wait(260_000, looks=draw.below(3) and draw.below(20))
    for name in (*ENDED, *(f"stall_{name}" for name in stalls_of(draw.config))):
        core.read(name)


def _enter_ring(draw, core, kind, rank):
    size = 1 + draw.below(7) if kind == "bad ring" else draw.cores
    place = size + draw.below(8 - size) if kind == "bad ring" else rank
    position = REGISTER["ring"].pack(rank=place, size=size, flush=0)
    core.barrier()
    core.write("ring", REGISTER["ring"].pack(rank=draw.below(8), size=1 + draw.below(8), flush=0))
    core.write("ring", position | _FLUSH)
    core.idle(100)
    core.barrier()
    core.write("ring", position)
    core.barrier()


def _try_registers(draw, core):
    """Writes and reads registers that keep values. The C model does the same."""
    others = ("interrupt", "ring")
    kept = [one for one in registers_of(draw.config) if one.access == "rw" and one.name not in others]
    if draw.chance(0.2):  # no register is there
        core.script.append(("write", 0x100 + 4 * draw.below(64), draw.below(1 << 32), 15))
    core.expected = []
    for register in draw.rng.choice(kept, draw.below(4)):
        value, other, strobe = draw.below(1 << 32), draw.below(1 << 32), draw.below(16)
        mask = sum(255 << 8 * byte for byte in range(4) if strobe >> byte & 1)
        core.write(register.name, value)
        core.write(register.name, other, strobe)
        core.read(register.name)
        draw.registers.write(register.name, value & ~mask | other & mask)
        core.expected.append(draw.registers.read(register.name))
