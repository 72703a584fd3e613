"""The systolic array: rows of cells with stationary weights. Operands move right, and sums move down."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from ..lib.hierarchy import instantiate
from .cell import Cell

__all__ = ["SystolicRow", "SystolicArray"]


class SystolicRow(wiring.Component):
    """One row of the array: `n` cells side by side.

    Parameters
    ----------
    n : int
        Cells.
    stages : int
        Pipeline stages of a cell.

    Members
    -------
    x_i, w_i, mark_i, switch_i
        Enter the leftmost cell and move right one cell a cycle (`mark` one cell in two cycles); see :class:`hw.array.cell.Cell`.
    sums_i, sums_o : 32 n
        Binary32 sums from the row above and to the row below, column 0 lowest; column c is c cycles later than column 0.
    """

    def __init__(self, *, n, stages):
        self.n = n
        self.stages = stages
        super().__init__(
            {"x_i": In(16), "w_i": In(16), "mark_i": In(1), "switch_i": In(1), "sums_i": In(32 * n), "sums_o": Out(32 * n)}
        )

    def elaborate(self, platform):
        m = Module()
        moving = {"x": self.x_i, "w": self.w_i, "mark": self.mark_i, "switch": self.switch_i}
        for c in range(self.n):
            right = {name: Signal(len(value), name=f"{name}_{c}") for name, value in moving.items()}
            instantiate(
                m,
                platform,
                lambda: Cell(stages=self.stages),
                name=f"cell_{c}",
                module="tpu_cell",
                **{f"{name}_i": value for name, value in moving.items()},
                **{f"{name}_o": value for name, value in right.items()},
                sum_i=self.sums_i.word_select(c, 32),
                sum_o=self.sums_o.word_select(c, 32),
            )
            moving = right
        return m


class SystolicArray(wiring.Component):
    """A systolic array of `rows` x `n` cells, without handshake. The surrounding blocks skew operands and sums.

    With `lead, latency = split_stages(stages)`: operands of row r enter r * `latency` cycles after the operands of row 0. The
    sum of column c enters `lead` + c cycles after its operand of row 0, and leaves `rows` * `latency` cycles later.

    Parameters
    ----------
    n : int
        Columns.
    stages : int
        Pipeline stages of a cell.
    rows : int
        Rows, at most `band` or a multiple of it. Default: `n`.

    Members
    -------
    The members of :class:`SystolicRow`, with the operands of all rows concatenated, row 0 lowest.
    """

    #: Rows of a submodule. Bands keep the size of the top module and the time to generate it from growing with n * n.
    band = 8

    def __init__(self, *, n, stages, rows=None):
        self.n = n
        self.stages = stages
        self.rows = rows or n
        super().__init__(
            {
                "x_i": In(16 * self.rows),
                "w_i": In(16 * self.rows),
                "mark_i": In(self.rows),
                "switch_i": In(self.rows),
                "sums_i": In(32 * n),
                "sums_o": Out(32 * n),
            }
        )

    def elaborate(self, platform):
        m = Module()
        sizes = {"n": self.n, "stages": self.stages}
        if self.rows > self.band:
            part, height, make = "band", self.band, lambda: SystolicArray(rows=self.band, **sizes)
        else:
            part, height, make = "row", 1, lambda: SystolicRow(**sizes)
        count = self.rows // height
        above = self.sums_i
        for i in range(count):
            below = self.sums_o if i == count - 1 else Signal(32 * self.n, name=f"sums_{i}")
            instantiate(
                m,
                platform,
                make,
                name=f"{part}_{i}",
                module=f"tpu_{part}",
                x_i=self.x_i.word_select(i, 16 * height),
                w_i=self.w_i.word_select(i, 16 * height),
                mark_i=self.mark_i.word_select(i, height),
                switch_i=self.switch_i.word_select(i, height),
                sums_i=above,
                sums_o=below,
            )
            above = below
        return m
