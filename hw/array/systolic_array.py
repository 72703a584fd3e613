"""The systolic array: rows of cells, weights stay, operands move right, sums move down."""

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
    """`rows` rows, one below the other. There is no handshake inside; the blocks around it keep the timing.

    With `lead, latency = split_stages(stages)`: operands of row r come r * `latency` cycles after those of row 0, sums of
    column c come `lead` + c cycles after the operands of row 0 that they belong to, and leave `rows` * `latency` cycles
    later.

    Parameters
    ----------
    n : int
        Columns.
    stages : int
        Pipeline stages of a cell.
    rows : int
        Rows, by default `n`; at most `band`, or a multiple of it.

    Members
    -------
    As of :class:`SystolicRow`, with the operands of all rows side by side, row 0 lowest.
    """

    #: Rows that are a module of their own, so that neither the top of the array nor the time to write it grows with n * n.
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
