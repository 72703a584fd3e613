"""Images of host memory: the bytes of a program's instructions and constants."""

from dataclasses import dataclass

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Opcode, Region

from .program import Cost, Program, check_regions, first_constant

__all__ = ["Code", "encoded", "program_of"]


@dataclass(frozen=True, eq=False)
class Code:
    """A network's encoded instructions, and the data from which its images are built again."""

    words: bytes  # all instructions, including HALT
    image: tuple  # Tuple of int. Numbers of the tiles of constant weights, in the order of the image.
    places: np.ndarray  # Int32 array. For each instruction, its place among those that were emitted.
    order: tuple  # fields of :class:`sim.compiler.order.search.Order`
    plans: tuple  # Tuple of str. Description of the jobs of each stage.
    cost: Cost
    scratch: int  # vectors of region SCRATCH


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


def program_of(words, cost, constants, sizes, config, **others):
    """Returns the :class:`Program` of encoded instructions.

    Parameters
    ----------
    words : bytes
        Of :func:`encoded`.
    cost : Cost
    constants : bytes
        Constants of region MODEL, which follow the instructions.
    sizes : dict of Region to int
        Vectors of each region except MODEL.
    others : dict
        Further arguments of :class:`Program`.
    """
    instructions = len(words) // config.instruction_bytes
    model = words.ljust(first_constant(instructions, config), b"\0") + constants
    sizes = {region: size * config.vector_bytes for region, size in sizes.items()} | {Region.MODEL: len(model)}
    check_regions(sizes)
    return Program(model, instructions, sizes=sizes, cost=cost, config=config, **others)
