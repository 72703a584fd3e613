"""Validity checks of instructions. Like the core's decoder, they reject an instruction before it has any effect."""

from amaranth_tpu.hw.spec.encoding import decode
from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, REGION_WRITABLE, Fault, Opcode, exists, space_depth
from amaranth_tpu.hw.spec.registers import MOST_CORES

__all__ = ["MachineFault", "check", "host_bytes"]


class MachineFault(Exception):
    """A fault that ends a program before HALT. `cause` is the :class:`.Fault`, and `pc` the offset of the instruction in region
    MODEL."""

    def __init__(self, cause, pc):
        super().__init__(f"{cause.name} at pc {pc:#x}")
        self.cause, self.pc = cause, pc


def check(config, sizes, word, pc, *, rank=0, size=1, refused=False):
    """Checks an instruction. Returns `(opcode, fields)`: the opcode, and its fields by name, with enumeration members for coded
    fields.

    Parameters
    ----------
    config : hw.config.Config
    sizes : dict Region -> int
        Size of each region of host memory, in bytes. Missing regions are empty.
    word : int
        The instruction.
    pc : int
        Offset of the instruction in region MODEL.
    rank, size : int
        Position in the ring, and number of cores.
    refused : bool
        True after a fault or `aresetn` in a ring of several cores, until the links are flushed. Every RING is then a fault.

    Raises
    ------
    MachineFault
        With the first of the causes ILLEGAL, LENGTH, RING and ADDRESS that applies.
    """
    try:
        opcode, fields = decode(word, config)
    except ValueError:
        raise MachineFault(Fault.ILLEGAL, pc) from None
    record = INSTRUCTIONS[opcode]
    for field in record.fields:
        if field.codes:
            codes = {code.value: code for code in field.codes if exists(config, code)}
            fields[field.name] = codes.get(fields[field.name])
    if (
        None in fields.values()
        or any(all(fields[name] is code for name, code in excluded) for excluded in record.excluded)
        or not 1 <= fields.get("lanes", 1) <= config.n
    ):
        raise MachineFault(Fault.ILLEGAL, pc)
    if not all(fields[name] for name in record.counts):
        raise MachineFault(Fault.LENGTH, pc)
    if any(field.most and fields[field.name] > getattr(config, field.most) for field in record.fields):
        raise MachineFault(Fault.LENGTH, pc)
    if fields.get(record.tiled) and fields["rows"] % config.n:
        raise MachineFault(Fault.LENGTH, pc)
    if opcode is Opcode.RING and (not rank < size <= MOST_CORES or (refused and size > 1)):
        raise MachineFault(Fault.RING, pc)
    if not (_host_is_inside(config, sizes, opcode, fields) and _spans_are_inside(config, opcode, fields, size)):
        raise MachineFault(Fault.ADDRESS, pc)
    return opcode, fields


def host_bytes(config, opcode, fields):
    """Returns the number of bytes of host memory that an instruction reads or writes."""
    return INSTRUCTIONS[opcode].moved(config.n, fields) * config.vector_bytes


def _host_is_inside(config, sizes, opcode, fields):
    transfer = INSTRUCTIONS[opcode].transfer
    if transfer is None:
        return True
    region, offset = fields["region"], fields["offset"]
    return (
        offset % config.bus_bytes == 0
        and offset + host_bytes(config, opcode, fields) <= sizes.get(region, 0)
        and (transfer.use == "r" or REGION_WRITABLE[region])
    )


def _spans_are_inside(config, opcode, fields, size):
    for span in INSTRUCTIONS[opcode].spans:
        row, word = divmod(fields[span.base], config.n if span.space == "table" else 1)
        if span.is_touched(fields) and (word or row + span.length(fields, size) > space_depth(config, span.space)):
            return False
    return True
