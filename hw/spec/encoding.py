"""Encoder and decoder of instruction words. :mod:`hw.spec.opcodes` defines the fields."""

from amaranth.lib import enum

from .isa import INSTRUCTIONS, Opcode, records

__all__ = ["decode", "disassemble", "encode"]


def encode(opcode, **values):
    """Returns the 256-bit word of an instruction, as an int. Missing fields are 0.

    Raises
    ------
    ValueError
        If the opcode does not have a field, or a value does not fit its field.
    """
    word = opcode.value
    for field in INSTRUCTIONS[opcode].fields:
        value = values.pop(field.name, 0)
        value = int(value.value if isinstance(value, enum.Enum) else value)
        if not 0 <= value < 1 << field.width:
            raise ValueError(f"{opcode.name}.{field.name} = {value} does not fit {field.width} bits")
        word |= value << field.first
    if values:
        raise ValueError(f"{opcode.name} has no field {', '.join(values)}")
    return word


def decode(word, config=None):
    """Returns `(opcode, fields)` of a 256-bit word. Fields that the core lacks are 0.

    Parameters
    ----------
    word : int
    config : Config or None
        Configuration of the core. None: a core with all features.

    Raises
    ------
    ValueError
        If the opcode does not exist, or a reserved bit is set.
    """
    opcode, known = Opcode(word & 0xFF), INSTRUCTIONS if config is None else records(config)
    if opcode not in known:
        raise ValueError(f"{opcode.name}: this core does not have it")
    reserved = word & known[opcode].reserved
    if reserved:
        raise ValueError(f"{opcode.name}: reserved bits {reserved:#x} are set")
    return opcode, {field.name: word >> field.first & (1 << field.width) - 1 for field in INSTRUCTIONS[opcode].fields}


def disassemble(image, size):
    """Disassembles an image of instructions of `size` bytes, up to its first HALT. Returns one line per instruction, with the
    fields that are not 0."""
    lines = []
    for pc in range(0, len(image) - 31, size):
        word = int.from_bytes(image[pc : pc + 32], "little")
        try:
            opcode, fields = decode(word)
        except ValueError:
            return "\n".join([*lines, f"{pc:6x}  ILLEGAL {word:#x}"])
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if value)
        lines.append(f"{pc:6x}  {opcode.name:12} {shown}".rstrip())
        if opcode is Opcode.HALT:
            break
    return "\n".join(lines)
