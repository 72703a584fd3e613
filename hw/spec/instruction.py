"""What the record of an instruction says; :mod:`hw.spec.opcodes` has one for each opcode."""

from dataclasses import dataclass
from math import prod

from amaranth.lib import enum

__all__ = ["INSTRUCTION_WIDTH", "Unit", "Field", "Span", "Transfer", "Instruction"]

#: Bits of an instruction word.
INSTRUCTION_WIDTH = 256


class Unit(enum.Enum, shape=3):
    """Who executes an instruction."""

    LOAD = 0
    WEIGHTS = 1
    STORE = 2
    MATMUL = 3
    ACTIVATE = 4
    CONTROL = 5
    RING = 6


@dataclass(frozen=True)
class Field:
    """Bits `first` to `first + width - 1` of an instruction word.

    Attributes
    ----------
    meaning : str
        Without the full stop.
    count : bool
        Whether a value of 0 is refused (LENGTH).
    codes : tuple of enum members
        The values that are not refused (ILLEGAL), of those that the core has; none: all are allowed.
    needs : str or None
        Field of :class:`hw.config.Config` without which only the lowest `plain` bits are there; the others are reserved.
    plain : int
    most : str or None
        Field of :class:`hw.config.Config` above which a value is refused (LENGTH).
    """

    name: str
    first: int
    width: int
    meaning: str
    count: bool = False
    codes: tuple = ()
    needs: str | None = None
    plain: int = 0
    most: str | None = None

    @property
    def text(self):
        text = f"{self.meaning}{'; not 0' if self.count else ''}{f'; at most `{self.most}`' if self.most else ''}."
        if self.needs and self.plain:
            return f"{text} Without `{self.needs}`, {self.plain} bit."
        return f"{text} Only in a core with `{self.needs}`." if self.needs else text


@dataclass(frozen=True)
class Span:
    """Rows of one memory on the chip that an instruction touches.

    It begins in row `base`. From there, and from all rows that the `loops` lead to from there, it takes the product of `rows`
    rows, one behind the other. What is checked and interlocked is everything between the first row and the last. A field that
    is missing counts as 0.

    Attributes
    ----------
    space : str
        Memory: `buffer`, `acc`, `bias` or `table`.
    use : str
        `r` read, `w` written.
    base : str
        Field. That of space `table` counts words, of which a row has n, and begins a row.
    rows : tuple of str
        Fields.
    loops : tuple of (str, str)
        Fields with the rounds of a loop, and with the rows from one round to the next.
    tall : bool
        Whether `rows` counts results, of which one takes as many rows as the format says.
    step : str or None
        Field with the rows from one of `rows`, which is one field, to the next; 0: they lie one behind the other.
    slide : (str, tuple of str) or None
        Field; where it is 1, the rows are taken once for each of the product of the fields that follow, each time a row later.
    only_if : str or None
        Field that is 0 where nothing of this is touched.
    around : (str, tuple of enum members) or None
        Field with the rows from one segment to the next one, and the codes of `mode` where there is a segment for every core of
        the ring; else there is one.
    """

    space: str
    use: str
    base: str
    rows: tuple = ()
    loops: tuple = ()
    tall: bool = False
    step: str | None = None
    slide: tuple | None = None
    only_if: str | None = None
    around: tuple | None = None

    def is_touched(self, values):
        """`values` : fields of the instruction, by name."""
        return self.only_if is None or bool(values[self.only_if])

    def length(self, values, cores=1):
        """Rows from the first to the last, both included. `cores` : of the ring."""
        height, rows = values["format"].height if self.tall else 1, prod(values[name] for name in self.rows)
        together = height + (rows - 1) * (values.get(self.step) or height)
        if self.slide and values.get(self.slide[0]):
            together += prod(values[name] for name in self.slide[1]) - 1
        if self.around and values["mode"] in self.around[1]:
            together += (cores - 1) * values[self.around[0]]
        return together + sum((values[count] - 1) * values[stride] for count, stride in self.loops)


@dataclass(frozen=True)
class Transfer:
    """What goes between host memory and the chip: `rows` times `vectors` vectors, from `offset` in `region` on.

    Attributes
    ----------
    use : str
        Of host memory: `r` read, `w` written.
    vectors : int or None
        None: n of them, a tile.
    half : str or None
        Field; where it is not 0, half of them.
    """

    use: str
    vectors: int | None
    half: str | None = None


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    unit : Unit
    effect : str
        What it does.
    fields : tuple of Field
        All other bits but those of the opcode are reserved, and must be 0.
    spans : tuple of Span
    transfer : Transfer or None
    task : Task or None
        What the activation unit does, if not results of sums.
    excluded : tuple of tuples of (str, enum member)
        Fields and codes that may not stand together (ILLEGAL).
    tiled : str or None
        Field; where it is 1, `rows` that are not a multiple of n are refused (LENGTH).
    needs : str or None
        Field of :class:`hw.config.Config` without which a core does not have the instruction.
    """

    unit: Unit
    effect: str
    fields: tuple = ()
    spans: tuple = ()
    transfer: Transfer | None = None
    task: enum.Enum | None = None
    excluded: tuple = ()
    tiled: str | None = None
    needs: str | None = None

    @property
    def text(self):
        return f"{self.effect} Only in a core with `{self.needs}`." if self.needs else self.effect

    @property
    def widths(self):
        """Field to its bits."""
        return {field.name: field.width for field in self.fields}

    def codes_of(self, name):
        """What a field may hold; nothing if it is not there."""
        return next((field.codes for field in self.fields if field.name == name), ())

    @property
    def counts(self):
        """Names of the fields that must not be 0."""
        return [field.name for field in self.fields if field.count]

    @property
    def reserved(self):
        """Mask of the reserved bits of the word."""
        return (1 << INSTRUCTION_WIDTH) - 256 & ~sum((1 << field.width) - 1 << field.first for field in self.fields)

    def spans_of(self, space):
        return [span for span in self.spans if span.space == space]

    def vectors(self, n, values=None):
        """Vectors that one of `rows` moves from or to host memory. `values` : fields of the instruction, by name; those that are
        missing are 0."""
        if self.transfer is None:
            return 0
        vectors = n if self.transfer.vectors is None else self.transfer.vectors
        half = (values or {}).get(self.transfer.half, 0)
        return vectors // 2 if getattr(half, "value", half) else vectors
