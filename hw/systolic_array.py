"""The systolic array: rows of cells, weights stay, operands move right, sums move down."""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .cell import Cell
from .hierarchy import instantiate

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
        Enter the leftmost cell and move right one cell a cycle (`mark` one cell in two cycles); see :class:`hw.cell.Cell`.
    sums_i, sums_o : array of n x 32
        Binary32 sums from the row above and to the row below; column c is c cycles later than column 0.
    """

    def __init__(self, *, n, stages):
        self.n = n
        self.stages = stages
        super().__init__({
            "x_i": In(16), "w_i": In(16), "mark_i": In(1), "switch_i": In(1),
            "sums_i": In(32).array(n), "sums_o": Out(32).array(n),
        })

    def elaborate(self, platform):
        m = Module()
        left = self
        for column in range(self.n):
            cell = instantiate(m, platform, lambda: Cell(stages=self.stages),
                               name=f"cell_{column}", module="tpu_cell")
            m.d.comb += [
                cell.x_i.eq(left.x_i if left is self else left.x_o),
                cell.w_i.eq(left.w_i if left is self else left.w_o),
                cell.mark_i.eq(left.mark_i if left is self else left.mark_o),
                cell.switch_i.eq(left.switch_i if left is self else left.switch_o),
                cell.sum_i.eq(self.sums_i[column]),
                self.sums_o[column].eq(cell.sum_o),
            ]
            left = cell
        return m


class SystolicArray(wiring.Component):
    """`n` rows, one below the other. There is no handshake inside: whoever feeds it keeps the timing.

    With `lead, latency = split_stages(stages)`: operands of row r come r * `latency` cycles after those of row 0, sums of
    column c come `lead` + c cycles after the operands of row 0 that they belong to, and leave n * `latency` cycles later.

    Parameters and members as :class:`SystolicRow`, with an array of `n` for each operand.
    """

    def __init__(self, *, n, stages):
        self.n = n
        self.stages = stages
        super().__init__({
            "x": In(16).array(n), "w": In(16).array(n), "mark": In(1).array(n), "switch": In(1).array(n),
            "sums_i": In(32).array(n), "sums_o": Out(32).array(n),
        })

    def elaborate(self, platform):
        m = Module()
        sums = self.sums_i
        for r in range(self.n):
            row = instantiate(m, platform, lambda: SystolicRow(n=self.n, stages=self.stages),
                              name=f"row_{r}", module="tpu_row")
            m.d.comb += [
                row.x_i.eq(self.x[r]),
                row.w_i.eq(self.w[r]),
                row.mark_i.eq(self.mark[r]),
                row.switch_i.eq(self.switch[r]),
                *(row.sums_i[c].eq(sums[c]) for c in range(self.n)),
            ]
            sums = row.sums_o
        m.d.comb += [self.sums_o[c].eq(sums[c]) for c in range(self.n)]
        return m
