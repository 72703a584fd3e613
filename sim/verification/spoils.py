"""Changes of random programs and regions that end a run with a fault. `draw` is the :class:`.Session` that draws them."""

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Opcode, Region, RingMode

from ..golden.isa_check import MachineFault, check

__all__ = ["lacks_tiles", "other_rings", "refusal", "refused_part", "spoiled_region", "transfer_alone", "wide_word"]

#: Causes with which a word is refused.
_CAUSES = ("ILLEGAL", "LENGTH", "ADDRESS")


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


def refused_part(draw, program):
    """Returns a part of a program, and the `(cause, place)` of the word to refuse there: after an instruction after which no word
    was refused for this cause. The place is None if there is no such instruction."""
    places = {word[0]: place for place, word in enumerate(program)}
    wanted = sorted(event for event in draw.missed if event[0] in _CAUSES and event[1] == "after")
    wanted = [(cause, opcode) for cause, _, opcode in wanted if Opcode[opcode] in places]
    if not wanted:
        return program[-1 - draw.below(6 if draw.chance(0.5) else 30) :], None
    cause, opcode = wanted[draw.below(len(wanted))]
    draw.missed.discard((cause, "after", opcode))
    last = places[Opcode[opcode]]
    first = max(0, last - draw.below(4))
    return [*program[first : last + 1], (Opcode.HALT, {})], (cause, last + 1 - first)


def refusal(draw, program, ends, target=None):
    """Inserts a word that the core refuses. Returns its cause and its place. `ends` are the sizes of the regions by name.
    `target` is the cause and the place; default: random."""
    regions = {Region[name]: end for name, end in ends.items()}
    wanted, place = target or (None, draw.below(len(program)))
    while True:
        opcode, fields = program[draw.below(len(program)) if target else place]
        if draw.chance(0.5):
            word = encode(opcode, **fields)
            for _ in range(1 + draw.below(2)):
                word ^= 1 << draw.below(256 if draw.chance(0.2) else 224)
        else:
            widths = INSTRUCTIONS[opcode].widths
            wide = {name: draw.below(1 << draw.below(width + 1)) for name, width in widths.items() if draw.chance(0.3)}
            word = encode(opcode, **fields | wide)
        if (cause := _cause(draw, regions, word)) and wanted in (None, cause):
            program.insert(place, word)
            return cause, place


def _cause(draw, regions, word):
    try:
        check(draw.config, regions, word, 0, size=draw.cores)
    except MachineFault as fault:
        return fault.cause.name
    return None


def wide_word(draw, program, ends, opcode):
    """Inserts an instruction whose addresses, strides and counts have their largest values. Returns its cause and its place."""
    record, place = INSTRUCTIONS[opcode], draw.below(len(program))
    fields = {field.name: (1 << field.width) - 1 for field in record.fields if not field.codes and field.width >= 8}
    word = encode(opcode, **fields | ({"lanes": 1} if "lanes" in fields else {}))
    if not record.counts:  # reserved bits instead
        word |= (1 << 256) - (1 << 8)
    cause = _cause(draw, {Region[name]: end for name, end in ends.items()}, word)
    program.insert(place, word)
    return cause, place


def transfer_alone(draw, program):
    """Returns a program of one transfer of a kind that had no bus error, and its fields; or the program and None."""
    wanted = [event[2] for event in sorted(draw.missed) if event[0].startswith("BUS") and event[1] == "of"]
    found = [word for word in program if word[0].name in wanted]
    if not found:
        return program, None
    opcode, fields = found[draw.below(len(found))]
    draw.missed -= {event for event in draw.missed if event[1:] == ("of", opcode.name)}
    before = [(Opcode.ACTIVATE, {"rows": 1, "lanes": 1})] * draw.below(8)  # so that it has any of the slots
    return [*before, (opcode, fields), (Opcode.HALT, {})], fields


def other_rings(draw, program):
    """Returns a program whose RINGs have another mode or fewer vectors."""
    changed = []
    for opcode, fields in program:
        if opcode is Opcode.RING:
            name = str(draw.rng.choice(["mode", "segment", "rounds"]))
            fields = fields | {name: RingMode(draw.below(3)) if name == "mode" else 1 + draw.below(fields[name])}
        changed.append((opcode, fields))
    return changed


def spoiled_region(draw, program, bases, ends, name=None, is_outside=None):
    """Makes a region unusable: misaligned, outside the bus, or MODEL too short. Returns the place of the first instruction that
    needs it; None if none does. Default: a random region, and a random way."""
    name = name or str(draw.rng.choice(list(bases)))
    if name == "MODEL" and is_outside is None and draw.chance(0.5):
        place, size = draw.below(len(program)), draw.config.instruction_bytes
        ends[name] += place * size + draw.below(size) - (len(program) + 1) * size
        return place
    if not (draw.chance(0.5) if is_outside is None else is_outside):
        bases[name] += 1 + draw.below(draw.config.bus_bytes - 1)
    else:
        bases[name] |= 1 + draw.below((1 << 64 - draw.config.address_width) - 1) << draw.config.address_width
    users = [place for place, (_, fields) in enumerate(program) if fields.get("region", None) == Region[name]]
    return 0 if name == "MODEL" else users[0] if users else None
