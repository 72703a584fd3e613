"""Changes of random programs and regions that end a run with a fault. `draw` is the :class:`.Session` that draws them."""

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode, Region, RingMode

from ..golden.isa_check import MachineFault, check

__all__ = ["lacks_tiles", "other_rings", "refusal", "spoiled_region"]


def lacks_tiles(program):
    """Returns True if a MATMUL of the program takes more tiles than were loaded before."""
    tiles = 0
    for word in program:
        if isinstance(word, tuple) and word[0] is Opcode.LOAD_WEIGHTS:
            tiles += word[1]["rows"]
        elif isinstance(word, tuple) and word[0] is Opcode.MATMUL and not word[1].get("keep"):
            tiles -= word[1]["tiles0"] * word[1]["tiles1"]
        if tiles < 0:
            return True
    return False


def refusal(draw, program, ends):
    """Inserts a word that the core refuses. Returns its cause and its place. `ends` are the sizes of the regions by name."""
    regions, place = {Region[name]: end for name, end in ends.items()}, draw.below(len(program))
    opcode, fields = program[place]
    while True:
        if draw.chance(0.5):
            word = encode(opcode, **fields)
            for _ in range(1 + draw.below(2)):
                word ^= 1 << draw.below(256 if draw.chance(0.2) else 224)
        else:
            widths = INSTRUCTIONS[opcode].widths
            wide = {name: draw.below(1 << draw.below(width + 1)) for name, width in widths.items() if draw.chance(0.3)}
            word = encode(opcode, **fields | wide)
        try:
            check(draw.config, regions, word, 0, size=draw.cores)
        except MachineFault as fault:
            program.insert(place, word)
            return fault.cause.name, place


def other_rings(draw, program):
    """Returns a program whose RINGs have another mode or fewer vectors."""
    changed = []
    for opcode, fields in program:
        if opcode is Opcode.RING:
            name = str(draw.rng.choice(["mode", "segment", "rounds"]))
            fields = fields | {name: RingMode(draw.below(3)) if name == "mode" else 1 + draw.below(fields[name])}
        changed.append((opcode, fields))
    return changed


def spoiled_region(draw, program, bases, ends):
    """Makes a region unusable: misaligned, outside the bus, or MODEL too short. Returns the place of the first instruction that
    needs it; None if none does."""
    name = str(draw.rng.choice(list(bases)))
    if name == "MODEL" and draw.chance(0.5):
        place, size = draw.below(len(program)), draw.config.instruction_bytes
        ends[name] += place * size + draw.below(size) - (len(program) + 1) * size
        return place
    if draw.chance(0.5):
        bases[name] += 1 + draw.below(draw.config.bus_bytes - 1)
    else:
        bases[name] |= 1 + draw.below((1 << 64 - draw.config.address_width) - 1) << draw.config.address_width
    users = [place for place, (_, fields) in enumerate(program) if fields.get("region", None) == Region[name]]
    return 0 if name == "MODEL" else users[0] if users else None
