"""Comparison of the C model with the Python model, which is the definition, on random valid and damaged programs.

As a command, it compares `programs` programs drawn from `seed`: `python model_comparison.py PROGRAMS SEED`.
"""

import ctypes
import itertools
import random
import sys
from collections import Counter

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.isa import (
    INSTRUCTIONS,
    TABLE_SETTINGS,
    TABLE_WORDS,
    Condition,
    Fault,
    Format,
    FunctionCode,
    Opcode,
    Region,
    RingMode,
)
from amaranth_tpu.hw.spec.normalization import upper_bits
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.c_machine import CCore, CMachineRing
from amaranth_tpu.sim.golden.isa_model import Machine, MachineFault
from amaranth_tpu.sim.golden.isa_ring import MachineRing
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.verification.programs import Hazards
from core_programs import Case
from core_runs import FULL, SIZES, SMALL, TINY, image_of, op
from fifo_programs import Edge, limits
from random_words import at_edge, edges, random_word

#: The cores that the tests of the RTL draw, and each with a ring.
CONFIGS = [FULL, SMALL, *(Config(**TINY | sizes) for sizes in SIZES)]
RINGS = [FULL, *(Config(**TINY | sizes | {"ring": True, "ring_depth": 4}) for sizes in SIZES)]


def _data(rng, size):
    """Returns `size` bytes: any bits, bfloat16 around a power of two, or bfloat16 of all classes."""
    match rng.integers(4):
        case 0:
            return rng.bytes(size)
        case 1:
            return numbers(rng, size // 2, 0.1, 16).astype(np.uint16).tobytes()
    values = rng.normal(size=size // 2) * 2.0 ** rng.integers(-70, 60)
    return values.astype(np.float32).astype(bfloat16).tobytes()


def _damaged(rng, config, image):
    """Returns a program with up to three faults: a changed bit, a field that is 0, larger or random, or two swapped
    instructions."""
    image, step = bytearray(image), config.instruction_bytes
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(len(image) // 2)) * 2
        match rng.integers(4):
            case 0:
                image[place + int(rng.integers(2))] ^= 1 << int(rng.integers(8))
            case 1 if place % step:
                image[place : place + 2] = bytes(2)
            case 2 if place % step:
                image[place] = (image[place] + int(rng.integers(1, 9))) & 0xFF
            case _:
                one, other = (slice(step * int(k), step * int(k) + step) for k in rng.integers(len(image) // step, size=2))
                image[one], image[other] = image[other], image[one]
    return bytes(image)


def end_of(ring):
    """Runs a ring. Returns everything that a program can change: faults, counts, memories, host memory."""
    try:
        ring.run()
    except MachineFault as fault:
        first = fault.cause, fault.pc
    else:
        first = None
    faults = [fault and (fault.cause, fault.pc) for fault in ring.faults]
    states = [
        (
            machine.executed,
            machine.config.ring and machine.refused,
            *map(bytes, (machine.buffer, machine.sums, machine.bias, machine.updates)),
        )
        + tuple(bytes(machine.regions[region]) for region in machine.regions)
        for machine in ring.machines
    ]
    return first, faults, states


def compare(rng, config, cores, *, known=True, runs=2):
    """Compares `runs` programs that follow each other on the same cores; the second one is damaged. Returns the causes of the
    faults; None for a program without a fault. `known` is False to load the whole function table first."""
    hazards, causes = Hazards(rng, config), []
    hazards.has_table = known or not config.table_lanes
    rings = [kind(config, [{}] * cores) for kind in (MachineRing, CMachineRing)]
    for number in range(runs):
        image, found = image_of(config, hazards.make(40, cores)), []
        images = [_damaged(rng, config, image) if number % 2 and rng.random() < 0.7 else image for _ in range(cores)]
        flushes = rng.random() < 0.5
        data = [{Region[name]: _data(rng, size) for name, size in Case.sizes.items()} for _ in range(cores)]
        for ring in rings:
            for machine, own, contents in zip(ring.machines, images, data):
                machine.regions = {Region.MODEL: own} | {region: bytearray(bits) for region, bits in contents.items()}
            found.append(end_of(ring))
            if flushes:
                ring.flush()
        assert found[0][:2] == found[1][:2], f"{config}\n{found[0][:2]} in Python, {found[1][:2]} in C"
        for rank, (python, compiled) in enumerate(zip(found[0][2], found[1][2])):
            wrong = [index for index, pair in enumerate(zip(python, compiled)) if pair[0] != pair[1]]
            assert not wrong, f"{config}\ncore {rank} of {cores}: {wrong} differ of: executed, refused, 4 memories, regions"
        causes.append(found[0][0] and found[0][0][0].name)
    return causes


def compare_many(rng, programs):
    """Compares at least `programs` programs on all configurations, about a third on rings of two or three cores. Returns the
    number of programs by the cause of their fault."""
    causes = Counter()
    while causes.total() < programs:
        cores = int(rng.choice([1, 1, 1, 1, 1, 1, 2, 3]))
        configs = RINGS if cores > 1 else CONFIGS
        config = configs[int(rng.integers(len(configs)))]
        causes.update(compare(rng, config, cores, known=rng.random() < 0.9, runs=3 if cores > 1 else 2))
    return causes


def _same_end(config, regions, memories=({},)):
    """Compares both models on one program for each core, with the host memories `regions`. The cores' own memories start with the
    bits `memories`. Returns the cause of the fault, or None."""
    ends = []
    for kind in (MachineRing, CMachineRing):
        ring = kind(config, [{region: bytearray(data) for region, data in own.items()} for own in regions])
        for machine, own in zip(ring.machines, memories):
            for name, bits in own.items():
                getattr(machine, name)[:] = bits
        ends.append(end_of(ring))
    assert ends[0] == ends[1], f"{config}: {ends[0][:2]} in Python, {ends[1][:2]} in C"
    return ends[0][0] and ends[0][0][0].name


def compare_fifo(rng, programs):
    """Compares programs on both sides of a deadlock: on the weight FIFO, the queues and the instructions in flight. Returns the
    number of programs by the cause of their fault."""
    causes = Counter()
    for in_flight in (4, 8, 32):
        config = Config(**TINY | {"n": 2, "bus_width": 32, "weight_fifo_depth": 2, "in_flight": in_flight})
        edge = Edge(rng, config)
        for words in [*(words for _, words, _ in limits(config)), *(edge.make() for _ in range(programs // 3))]:
            regions = {Region[name]: _data(rng, size) for name, size in Case.sizes.items()}
            causes[_same_end(config, [regions | {Region.MODEL: image_of(config, words)}])] += 1
    return causes


def _numbers(rng, shape):
    """Returns bit patterns of binary32: random, or few exponents with few or many fraction bits, or special."""
    special = [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x007FFFFF, 0x00800000, 0x7F7FFFFF]
    bits = rng.integers(0, 1 << 32, shape, np.uint64).astype(np.uint32)
    near = bits & np.uint32(0x807FFFFF) | (np.uint32(rng.integers(100, 150)) + bits % np.uint32(8)) << np.uint32(23)
    near = near & np.uint32(0xFFFFFFFF << int(rng.integers(24)) & 0xFFFFFFFF)
    kind = rng.random(shape)
    return np.where(kind < 0.1, rng.choice(np.array(special, np.uint32), shape), np.where(kind < 0.2, bits, near))


def compare_instructions(rng, count):
    """Compares single instructions of the array and of the activation unit on cores whose memories have adversarial numbers."""
    sizes = [{"n": n, "bus_width": 16 * n, "softmax_lanes": max(2, n // 2), "weight_rows": 1} for n in (2, 8)]
    configs = [FULL, *(Config(**vars(FULL) | size) for size in sizes)]
    for number in range(count):
        config = configs[number % len(configs)]
        hazards = Hazards(rng, config)
        opcodes = [opcode for opcode, record in hazards.records.items() if record.unit is Unit.ACTIVATE]
        opcode = opcodes[number % len(opcodes)]
        formats = [code for code in INSTRUCTIONS[opcode].codes_of("format") if code is not Format.PLANES]
        given = {"format": formats[int(rng.integers(len(formats)))]} if formats else {}
        table = {"first": 110 + int(rng.integers(30)), "rows": 1} | {
            name: int(rng.integers(1 << width)) for name, width in TABLE_SETTINGS.items() if name != "first"
        }
        fields = hazards.draw(opcode, **given)
        if not fields or (fields.get("function"), given.get("format")) == (FunctionCode.TABLE, Format.INDEX):
            continue
        if "condition" in INSTRUCTIONS[opcode].widths:
            fields["condition"] = Condition(int(rng.integers(2)))
        words = [op(Opcode.LOAD_TABLE, **table), op(opcode, **fields), op(Opcode.HALT)]
        found = _same_end(config, [{Region.MODEL: image_of(config, words)}], [_memories(rng, config)])
        assert found in (None, "ADDRESS"), found


def _memories(rng, config):
    n = config.n
    buffer = (_numbers(rng, (config.unified_buffer_depth, n)) >> np.uint32(16)).astype(np.uint16)
    return {"sums": _numbers(rng, (config.accumulator_depth, n)), "bias": _numbers(rng, (config.bias_depth, n)), "buffer": buffer}


def compare_all_lanes(rng):
    """Compares thousands of results of each function and format, and of wide rows of softmax, on a core whose instructions are
    longer than 32 bytes."""
    depths = {"unified_buffer_depth": 512, "accumulator_depth": 128, "bias_depth": 32}
    config = Config(n=32, bus_width=512, **depths, training=True, softmax_lanes=2, normalize=True)
    for function, format in itertools.product(FunctionCode, (Format.BFLOAT16, Format.BINARY32, Format.PLANES)):
        table = {name: int(rng.integers(1 << width)) for name, width in TABLE_SETTINGS.items()} | {
            "first": int(rng.integers(90, 150))
        }
        result = op(Opcode.ACTIVATE, function=function, format=format, rows=128, lanes=int(rng.integers(30, 33)))
        program = [op(Opcode.LOAD_TABLE, rows=TABLE_WORDS // 32, **table), result, op(Opcode.HALT)]
        _same_end(config, [{Region.MODEL: image_of(config, program)}], [_memories(rng, config)])
    for spread in (2, 10, 40):
        rows = dict(rows=8, tiles=16, acc_stride=8, buffer_stride=8)
        wide = dict(factor=upper_bits(16), epsilon=upper_bits(rng.choice((0, 1e-3, spread**2))), centred=int(rng.integers(2)))
        program = [
            op(Opcode.SOFTMAX, **rows, lanes=int(rng.integers(1, 33))),
            op(Opcode.NORMALIZE, **rows, **wide, root=int(rng.integers(2)), buffer=256, lanes=int(rng.integers(1, 33))),
            op(Opcode.HALT),
        ]
        sums = (spread * (rng.normal(size=(128, 32)) + rng.choice((0, 8)))).astype(np.float32).view(np.uint32)
        assert _same_end(config, [{Region.MODEL: image_of(config, program)}], [{"sums": sums}]) is None


def compare_rings(rng, count):
    """Compares RINGs of 1 to 8 cores with all modes, some of which do not match. Returns the number of rings by the cause of the
    fault."""
    causes = Counter()
    for number in range(count):
        cores, mode = 1 + number % 8, RingMode(number % 3)
        fields = dict(mode=mode, segment=int(rng.integers(1, 3)), rounds=1, result=16 * (number % 5 != 0), stride=2)
        each = [dict(fields) for _ in range(cores)]
        if rng.random() < 0.3:
            each[int(rng.integers(cores))][("mode", "segment", "rounds")[number % 7 % 3]] = 2
        images = [{Region.MODEL: image_of(FULL, [op(Opcode.RING, **own), op(Opcode.HALT)])} for own in each]
        values = rng.normal(size=(cores, FULL.unified_buffer_depth, FULL.n // 2)).astype("<f4").view("<u2")
        causes[_same_end(FULL, images, [{"buffer": own} for own in values])] += 1
    return causes


def compare_words(rng, config, count):
    """Compares the checks and the fields of random words, and of words at the limit of each check. Returns the number of words by
    cause of the fault; None for valid words."""
    draw, names = random.Random(int(rng.integers(1 << 32))), sorted({f.name for r in INSTRUCTIONS.values() for f in r.fields})
    core, record, fields = CCore(config), ctypes.c_void_p(), (ctypes.c_uint32 * (1 + len(names)))()
    sizes, causes = [draw.randrange(1, 200) * 16 * config.n for _ in Region], Counter()
    for region, size in zip(Region, sizes):
        core.write(f"{region.name.lower()}_size", size)
    core.write("ring", REGISTER["ring"].pack(rank=0, size=1, flush=1))  # else RING is refused after power-up
    machine = Machine(config, {region: bytes(size) for region, size in zip(Region, sizes)})
    edge_cases = [(*edge, before) for edge in edges(config) for before in (1, 0)]
    for number in range(count + len(edge_cases)):
        machine.size = draw.choice((1, 2, 3, 8)) if config.ring else 1
        machine.rank = draw.randrange(8) if config.ring and number < count and draw.random() < 0.5 else 0
        core.write("ring", REGISTER["ring"].pack(rank=machine.rank, size=machine.size, flush=0))
        if number < count:
            word = random_word(draw, config, sizes, machine.size)
        else:
            word = at_edge(draw, config, machine.size, *edge_cases[number - count])
        pointer, encoded = ctypes.c_void_p(core.pointer), word.to_bytes(32, "little")
        found = core.library.tpu_core_decode(pointer, encoded, ctypes.byref(record), fields)
        try:
            expected = {name: getattr(value, "value", value) for name, value in machine.check(word, 0)[1].items()}
            cause = Fault.NONE
        except MachineFault as fault:
            cause = fault.cause
        assert found == cause.value, f"{word:#x}: {cause} in Python, {Fault(found)} in C; {config}"
        assert cause is not Fault.NONE or all(fields[1 + names.index(name)] == value for name, value in expected.items())
        causes[cause.name] += 1
    return causes


if __name__ == "__main__":
    draws = np.random.default_rng(int(sys.argv[2]))
    print(dict(compare_many(draws, int(sys.argv[1]))), dict(compare_fifo(draws, int(sys.argv[1]) // 4)))
    compare_instructions(draws, int(sys.argv[1]) * 2)
    compare_all_lanes(draws)
    print(dict(compare_rings(draws, int(sys.argv[1]))))
    for config in CONFIGS:
        print(dict(compare_words(draws, config, int(sys.argv[1]) * (8 if config is FULL else 1))))
