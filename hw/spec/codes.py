"""The codes of fields: what a number in a field of an instruction word, or in a register, stands for."""

from amaranth.lib import enum

__all__ = ["FunctionCode", "Format", "Half", "Condition", "RingMode", "Region", "REGION_WRITABLE", "Fault"]


class FunctionCode(enum.Enum, shape=4):
    """Activation function; TABLE: what LOAD_TABLE put into the function table."""

    NONE = 0
    RELU = 1
    TABLE = 2


class Format(enum.Enum, shape=2):
    """What is written of a row of results. BFLOAT16: one vector, rounded. BINARY32: two vectors that hold `n` binary32, low lanes
    first. PLANES: the upper halves of the binary32 in one vector, cut off, and their lower halves in another. INDEX: one vector,
    of the numbers of the largest rows of windows."""

    BFLOAT16 = 0
    BINARY32 = 1
    PLANES = 2
    INDEX = 3

    @property
    def height(self):
        """Vectors that a result takes."""
        return 2 if self in (Format.BINARY32, Format.PLANES) else 1


class Half(enum.Enum, shape=2):
    """What LOAD_BIAS writes of every binary32 of a bias row."""

    WHOLE = 0
    UPPER = 1
    LOWER = 2


class Condition(enum.Enum, shape=1):
    """In which lanes SELECT keeps a sum: where the operand, a bfloat16, is above 0, or where its low byte is `number`."""

    POSITIVE = 0
    EQUAL = 1


class RingMode(enum.Enum, shape=2):
    """What RING does with the segments of all cores: adds them up, each core getting all sums, or one segment of them; or gives
    each core all segments, as they are."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2


class Region(enum.Enum, shape=2):
    """Window of host memory, placed by the region registers; offsets count bytes from its base."""

    MODEL = 0
    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


#: Whether STORE may write to a region.
REGION_WRITABLE = {Region.MODEL: False, Region.INPUT: False, Region.OUTPUT: True, Region.SCRATCH: True}


class Fault(enum.Enum, shape=4):
    """Why a run ended early."""

    NONE = 0
    ILLEGAL = 1
    ADDRESS = 2
    LENGTH = 3
    BUS_READ = 4
    BUS_WRITE = 5
    TIMEOUT = 6
    RING = 7
