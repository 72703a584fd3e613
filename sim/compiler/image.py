"""The bytes of a program's instructions and constants, from a schedule."""

from copy import copy
from dataclasses import astuple, dataclass

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Opcode, Region, WeightFormat

from .codegen.dead_stores import scratch_vectors
from .errors import CompileError
from .program import Cost, Program, cost_of, first_constant

__all__ = ["Code", "code_of", "encoded", "model_of", "packed_tiles", "program_of"]


@dataclass(frozen=True, eq=False)
class Code:
    """A network's encoded instructions, and the data from which its images are built again."""

    words: bytes  # all instructions, including HALT
    image: tuple  # Tuple of int. Numbers of the tiles of constant weights, in the order of the image.
    blocks: tuple  # Tuple of (tiles, code of their format), neighbours in the image.
    places: np.ndarray  # Int32 array. For each instruction, its place among those that were emitted.
    order: tuple  # fields of :class:`sim.compiler.order.search.Order`
    plans: tuple  # Tuple of str. Description of the jobs of each stage.
    cost: Cost
    scratch: int  # vectors of region SCRATCH


def packed_tiles(ops, image, first, config):
    """Returns `(image, blocks, ops)`: the image and the instructions of a program whose tiles are stored in their formats.
    `image` has the numbers of the tiles of constant weights in the order of their first use, and begins at vector `first`.

    While instructions are emitted, each tile takes n vectors. In its format, a tile can be found only in the group of tiles that
    one LOAD_WEIGHTS reads, so each different group gets its own place. Without such formats, nothing changes.
    """
    image = tuple(map(int, image))
    if not any(op.fields.get("weight_format") for op in ops):
        return image, ((len(image), 0),), ops
    places, numbers, moved, free = {}, [], [], first
    for op in ops:
        start = op.fields.get("offset", 0) // config.vector_bytes - first
        if op.opcode is Opcode.LOAD_WEIGHTS and op.fields["region"] is Region.MODEL and start >= 0:
            tile, code = start // config.n, op.fields.get("weight_format", 0)
            if (key := (tile, op.rows, code)) not in places:
                places[key], free = free, free + WeightFormat(code).vectors(config.n, op.rows)
                numbers += image[tile : tile + op.rows]
            op = copy(op)
            op.fields = op.fields | {"offset": places[key] * config.vector_bytes}
        moved.append(op)
    return tuple(numbers), tuple((count, code) for _, count, code in places), moved


def encoded(ops, config):
    """Returns the bytes of instructions and of a HALT. Offsets of constants are from the first constant before, and from the
    start of region MODEL afterwards."""
    step, words = config.instruction_bytes, []
    constants = first_constant(len(ops) + 1, config)
    for op in ops:
        fields = dict(op.fields)
        if fields.get("region") is Region.MODEL:
            fields["offset"] += constants
        words.append(encode(op.opcode, **fields).to_bytes(step, "little"))
    return b"".join([*words, encode(Opcode.HALT).to_bytes(step, "little")])


def code_of(schedule, constants, config, names=()):
    """Returns the :class:`Code` of a :class:`.Schedule`, with the jobs of the stages `names`."""
    lowered = constants.lowered
    image, blocks, ops = packed_tiles(schedule.ops, schedule.image, constants.weights, config)
    stored = sum(WeightFormat(code).vectors(config.n, count) for count, code in blocks)
    vectors = 0 if lowered.step.state else lowered.sizes[Region.INPUT] + lowered.sizes[Region.MODEL] + stored
    cost = cost_of(schedule.ops, config, schedule.cycles, vectors * config.beats_per_vector)
    plans, scratch = tuple(schedule.plans.get(name, "") for name in names), scratch_vectors(schedule.ops, lowered, config)
    return Code(encoded(ops, config), image, blocks, schedule.places, astuple(schedule.order), plans, cost, scratch)


def model_of(words, constants, config):
    """Returns the bytes of region MODEL: encoded instructions, and the constants that follow them."""
    return words.ljust(first_constant(len(words) // config.instruction_bytes, config), b"\0") + constants


def program_of(code, constants, config, **others):
    """Returns the :class:`Program` of a :class:`Code`. `others` are further arguments of :class:`Program`. Raises CompileError if
    a region is too large."""
    model = model_of(code.words, constants.pack(code.image, code.blocks), config)
    vectors = constants.lowered.sizes | {Region.SCRATCH: code.scratch}
    sizes = {region: size * config.vector_bytes for region, size in vectors.items()} | {Region.MODEL: len(model)}
    for region, size in sizes.items():
        if size >= 1 << 32:
            raise CompileError(f"region {region.name} needs {size} bytes; offsets have 32 bits; use a smaller batch or network")
    instructions = len(code.words) // config.instruction_bytes
    return Program(model, instructions, sizes=sizes, cost=code.cost, config=config, plan=code.plans, **others)
