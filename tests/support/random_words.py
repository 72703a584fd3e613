"""Random instruction words, valid in about half of the cases, and words at the limit of each check."""

import bisect

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import (
    INSTRUCTIONS,
    TABLE_WORDS,
    FunctionCode,
    Opcode,
    Region,
    exists,
    records,
    space_depth,
    spaces_of,
)
from decoder_words import touched


def random_word(rng, config, sizes, cores):
    """Returns a random 256-bit instruction that is valid in about half of the cases, with addresses near the bounds of `sizes`
    and of the memories."""
    if rng.random() < 0.05:
        return rng.getrandbits(256)
    opcode, values = rng.choice(list(Opcode)), {}
    depths = {
        "buffer": config.unified_buffer_depth,
        "acc": config.accumulator_depth,
        "bias": config.bias_depth,
        "operand": config.unified_buffer_depth,
        "result": config.unified_buffer_depth,
    }
    record = INSTRUCTIONS[opcode] if rng.random() < 0.05 else records(config).get(opcode, INSTRUCTIONS[opcode])
    for name, width in record.widths.items():
        if name in depths:
            depth = depths[name]
            value = rng.choice((0, rng.randrange(depth), max(0, depth - rng.randrange(9)), rng.getrandbits(width)))
        elif name == "offset":
            value = rng.choice((0, rng.choice(sizes), rng.getrandbits(12))) - config.bus_bytes * rng.randrange(4 * config.n)
            value = max(0, value) // config.bus_bytes * config.bus_bytes
            value += rng.randrange(config.bus_bytes) if rng.random() < 0.1 else 0
        elif name == "lanes":
            value = rng.choice((0, 1, config.n, config.n + 1, rng.randrange(1, config.n + 1)))
        elif name == "function":
            value = rng.choice((0, 1, 0, 1, 2, 3))
        elif name == "buffer_step":
            value = rng.choice((0, 1, 2, 3, rng.randrange(20), rng.getrandbits(16)))
        elif name == "word":
            value = rng.choice((0, TABLE_WORDS - rng.randrange(9) * config.n, rng.randrange(2 * TABLE_WORDS)))
        elif name.startswith("window") and width == 8:
            value = rng.choice((1, 1, 2, 3, rng.randrange(6), rng.getrandbits(8)))
        elif width == 16:
            value = rng.choice((1, 1, 2, 3, rng.randrange(20), rng.choice((0, rng.getrandbits(16)))))
        else:
            value = rng.getrandbits(width)
        values[name] = value
    word = encode(opcode, **values)
    return word | (1 << rng.randrange(8, 256) if rng.random() < 0.03 else 0)


def edges(config):
    """Yields `(opcode, space, field, first)` for each field whose value decides whether a span ends at row `first` or one row
    earlier. If `space` is None, `first` is a value of the field itself."""
    for opcode, record in records(config).items():
        yield from ((opcode, None, field.name, getattr(config, field.most) + 1) for field in record.fields if field.most)
        for space in (*spaces_of(config), "table"):
            spans = record.spans_of(space)
            loops = [*(loop for span in spans for loop in span.loops), *(span.slide[1] for span in spans if span.slide)]
            names = {name for span in spans for name in (span.base, span.step, *span.rows, *(span.around or ())[:1])}
            for name in sorted((names | {name for loop in loops for name in loop}) & set(record.widths)):
                beyond = (1 << 16, 1 << 20, 1 << 30) if name in record.counts else (1 << 16,)
                yield from ((opcode, space, name, first) for first in (space_depth(config, space), *beyond))


def at_edge(rng, config, cores, opcode, space, name, first, before):
    """Returns a word with the smallest value of field `name` for which the span ends at row `first` or later. If `before` is 1,
    the value is one step less. The other fields are small and random, except strides for distant ends."""
    record = records(config)[opcode]
    fields = dict.fromkeys(INSTRUCTIONS[opcode].widths, 0)
    small = {one: min(4, 1 << width) for one, width in record.widths.items() if one not in ("offset", "transpose", "word")}
    fields |= {one: rng.randrange(most) for one, most in small.items()}
    fields |= {one: rng.randrange(1, 4) for one in record.counts}
    for field in record.fields:
        if field.codes:
            fields[field.name] = rng.choice([code for code in field.codes if exists(config, code)])
    usual = {"lanes": config.n, "region": Region.OUTPUT, "function": FunctionCode.NONE, "start": 1}
    fields |= {one: value for one, value in usual.items() if one in record.widths}

    if first > 1 << 16:
        strides = {stride: 1 << 15 for span in record.spans_of(space) for count, stride in span.loops if count == name}
        fields |= {stride: value for stride, value in strides.items() if stride not in record.counts}

    def last(value):
        return touched(opcode, {**fields, name: value}, config, cores)[space][2] if space else value

    value = bisect.bisect_left(range(1 << record.widths[name]), first, key=last) - before * (config.n if name == "word" else 1)
    if 0 <= value < 1 << record.widths[name]:
        fields[name] = value
    return encode(opcode, **{one: fields[one] for one in record.widths})
