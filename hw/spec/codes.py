"""The codes of fields of instruction words and registers."""

from amaranth.lib import enum

__all__ = [
    "FunctionCode",
    "Format",
    "Half",
    "Condition",
    "RingMode",
    "UpdatePart",
    "WeightFormat",
    "Region",
    "REGION_WRITABLE",
    "Fault",
]


class FunctionCode(enum.Enum, shape=4):
    """The activation functions. TABLE is the function in the function table, which LOAD_TABLE writes."""

    NONE = 0
    RELU = 1
    TABLE = 2


class Format(enum.Enum, shape=2):
    """The formats of a row of results. BFLOAT16: one vector, rounded. BINARY32: two vectors with `n` binary32 values, low lanes
    first. PLANES: the truncated upper halves of the binary32 values in one vector, the lower halves in another. INDEX: one vector
    with the indices of the largest rows of windows."""

    BFLOAT16 = 0
    BINARY32 = 1
    PLANES = 2
    INDEX = 3

    @property
    def height(self):
        """Returns the number of vectors of one row of results."""
        return 2 if self in (Format.BINARY32, Format.PLANES) else 1


class Half(enum.Enum, shape=2):
    """The halves of each binary32 value of a bias row that LOAD_BIAS writes."""

    WHOLE = 0
    UPPER = 1
    LOWER = 2


class Condition(enum.Enum, shape=1):
    """The conditions under which SELECT keeps a sum: its bfloat16 operand is above 0, or the low byte of the operand is
    `number`."""

    POSITIVE = 0
    EQUAL = 1


class RingMode(enum.Enum, shape=2):
    """The collective operations of RING. ALL_REDUCE: each core gets the sums of all segments. REDUCE_SCATTER: each core gets the
    sum of one segment. ALL_GATHER: each core gets all segments unchanged."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2


class WeightFormat(enum.Enum, shape=3):
    """The formats of weights in host memory. All but BFLOAT16 are elements of OCP MX: e4m3, e2m3, e2m1 and 8-bit integers / 64.
    A scale, a power of two, belongs to each column of a tile."""

    BFLOAT16 = 0
    MXFP8 = 1
    MXFP6 = 2
    MXFP4 = 3
    MXINT8 = 4

    @property
    def bits(self):
        """Returns the number of bits of a weight."""
        return (16, 8, 6, 4, 8)[self.value]

    def vectors(self, n, tiles):
        """Returns the number of vectors that `tiles` tiles of n x n take in host memory: their weights, and a vector of scales
        for each two tiles."""
        return tiles * n * self.bits // 16 + (0 if self is WeightFormat.BFLOAT16 else -(-tiles // 2))


class UpdatePart(enum.Enum, shape=2):
    """The parts of a row of the update memory: V' in bfloat16, and the upper or the lower half of each W'."""

    MOMENTUM = 1
    UPPER = 2
    LOWER = 3


class Region(enum.Enum, shape=2):
    """The regions of host memory. The region registers hold their base addresses. Offsets are counted in bytes from the base
    address."""

    MODEL = 0
    INPUT = 1
    OUTPUT = 2
    SCRATCH = 3


#: True for regions that STORE may write.
REGION_WRITABLE = {Region.MODEL: False, Region.INPUT: False, Region.OUTPUT: True, Region.SCRATCH: True}


class Fault(enum.Enum, shape=4):
    """The causes of a fault, which ends a run early."""

    NONE = 0
    ILLEGAL = 1
    ADDRESS = 2
    LENGTH = 3
    BUS_READ = 4
    BUS_WRITE = 5
    TIMEOUT = 6
    RING = 7
