"""The types of an instruction's record, which describes its word, its effect and its memory accesses. :mod:`hw.spec.opcodes`
defines the record of each opcode."""

from dataclasses import dataclass
from math import prod

from amaranth.lib import enum

from .codes import WeightFormat

__all__ = ["INSTRUCTION_WIDTH", "Unit", "Field", "Span", "Transfer", "Instruction"]

#: Bits of an instruction word.
INSTRUCTION_WIDTH = 256


class Unit(enum.Enum, shape=3):
    """The units that execute instructions."""

    LOAD = 0
    WEIGHTS = 1
    STORE = 2
    MATMUL = 3
    ACTIVATE = 4
    CONTROL = 5
    RING = 6


@dataclass(frozen=True)
class Field:
    """A field: bits `first` to `first + width - 1` of an instruction word."""

    name: str
    first: int
    width: int
    meaning: str  # description, without a full stop
    count: bool = False  # True if the field is a count: the value 0 is refused with fault LENGTH
    #: Tuple of enum members. Accepted values, as far as the core supports them. All other values are refused with fault ILLEGAL.
    #: Empty: all values are accepted.
    codes: tuple = ()
    #: Field of :class:`hw.config.Config` that is a feature of the core. Without the feature, only the lowest `plain` bits exist,
    #: and the others are reserved.
    needs: str | None = None
    plain: int = 0  # number of bits that exist without the feature `needs`
    #: Field of :class:`hw.config.Config` with the largest accepted value. Larger values are refused with fault LENGTH.
    most: str | None = None

    @property
    def text(self):
        text = f"{self.meaning}{'; not 0' if self.count else ''}{f'; at most `{self.most}`' if self.most else ''}."
        if self.needs and self.plain:
            return f"{text} Without `{self.needs}`, {self.plain} bit."
        return f"{text} Only in a core with `{self.needs}`." if self.needs else text


@dataclass(frozen=True)
class Span:
    """A span: rows of one on-chip memory that an instruction accesses.

    The first block of rows starts at row `base`. The `loops` add the starts of further blocks. Each block has as many consecutive
    rows as the product of `rows`. The range check and the hazard detection cover all rows from the first to the last. A missing
    field counts as 0.
    """

    space: str  # memory: `buffer`, `acc`, `bias`, `update` or `table`
    use: str  # `r` read, `w` written
    base: str  # Field with the first row. In space `table` it counts words, n per row, and must be a multiple of n.
    rows: tuple = ()  # Tuple of str. Fields whose product is the number of rows.
    loops: tuple = ()  # Tuple of (str, str). Fields with the iterations of a loop, and with its stride in rows.
    times: int = 1  # number of rows for each one that `rows` counts; 1 or 2
    tall: bool = False  # True if `rows` counts results. The format then defines the number of rows per result.
    step: str | None = None  # Field with the stride of `rows`, which is then a single field. 0: consecutive rows.
    #: Field, and fields with counts. If the field is 1, the access repeats as often as the product of the counts, each time one
    #: row later.
    slide: tuple | None = None
    only_if: str | None = None  # field that is 0 if the instruction does not access the span
    #: Field with the stride of segments in rows, and the codes of `mode` with one segment per core of the ring. Other modes have
    #: one segment.
    around: tuple | None = None

    def is_touched(self, values):
        """Returns True if an instruction accesses the span. `values` has the fields of the instruction, by name."""
        return self.only_if is None or bool(values[self.only_if])

    def length(self, values, cores=1):
        """Returns the number of rows from the first to the last, both included. `values` has the fields of the instruction, by
        name; `cores` is the number of cores in the ring."""
        height, rows = values["format"].height if self.tall else self.times, 1
        for name in self.rows:
            rows *= values[name]
        together = height + (rows - 1) * (values.get(self.step) or height)
        if self.slide and values.get(self.slide[0]):
            together += prod(values[name] for name in self.slide[1]) - 1
        if self.around and values["mode"] in self.around[1]:
            together += (cores - 1) * values[self.around[0]]
        for count, stride in self.loops:
            together += (values[count] - 1) * values[stride]
        return together


@dataclass(frozen=True)
class Transfer:
    """A transfer between host memory and the chip. It moves `vectors` vectors for each of `rows` rows, from byte `offset` of
    `region` on.
    """

    use: str  # access to host memory: `r` read, `w` written
    vectors: int | None  # Vectors per row. None: n, a tile.
    half: str | None = None  # Field. If it is not 0, half of the vectors are transferred.
    coded: str | None = None  # field with the :class:`.WeightFormat` of the tiles


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The record of an instruction: its word, its effect, and its memory accesses."""

    unit: Unit
    effect: str  # description of the effect
    fields: tuple = ()  # Tuple of Field. Fields of the word, without the opcode. All remaining bits are reserved, and must be 0.
    spans: tuple = ()  # tuple of Span
    transfer: Transfer | None = None
    task: enum.Enum | None = None  # work of the activation unit, unless it computes results from sums
    excluded: tuple = ()  # Tuple of tuples of (str, enum member). Combinations of fields and codes that are refused (ILLEGAL).
    tiled: str | None = None  # Field. If it is 1, `rows` must be a multiple of n (LENGTH).
    needs: str | None = None  # field of :class:`hw.config.Config` that the instruction requires

    @property
    def text(self):
        return f"{self.effect} Only in a core with `{self.needs}`." if self.needs else self.effect

    @property
    def widths(self):
        """Returns {name of a field: width in bits}."""
        return {field.name: field.width for field in self.fields}

    def codes_of(self, name):
        """Returns the accepted values of a field; empty if the instruction does not have the field."""
        return next((field.codes for field in self.fields if field.name == name), ())

    @property
    def counts(self):
        """Returns the names of the fields that must not be 0."""
        return [field.name for field in self.fields if field.count]

    @property
    def reserved(self):
        """Returns the mask of the reserved bits of the word."""
        return (1 << INSTRUCTION_WIDTH) - 256 & ~sum((1 << field.width) - 1 << field.first for field in self.fields)

    def spans_of(self, space):
        return [span for span in self.spans if span.space == space]

    def vectors(self, n, values=None):
        """Returns the number of vectors per row that are transferred from or to host memory.

        `values` has the fields of the instruction, by name. Missing fields are 0.
        """
        if self.transfer is None:
            return 0
        vectors = n if self.transfer.vectors is None else self.transfer.vectors
        half = (values or {}).get(self.transfer.half, 0)
        return vectors // 2 if getattr(half, "value", half) else vectors

    def moved(self, n, values):
        """Returns the number of vectors that are transferred from or to host memory. `values` has the fields of the instruction,
        by name."""
        code = values.get(self.transfer.coded, 0) if self.transfer else 0
        if code := getattr(code, "value", code):
            return WeightFormat(code).vectors(n, values["rows"])
        return values.get("rows", 0) * self.vectors(n, values)
