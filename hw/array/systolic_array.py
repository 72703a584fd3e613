"""The systolic array: rows of cells with stationary weights. Operands move right, and sums move down."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from ..lib.hierarchy import instantiate
from ..spec.memory_ports import sums_edge, weight_edge
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
    weight_rows : int
        Words of weights that enter in a cycle, 1 or 2.

    Members
    -------
    x_i : 16, in
    weights : weight edge of one row, in
        A word enters the first cell, or of two the first and the second, and moves right `weight_rows` cells a cycle; see
        :class:`hw.array.cell.Cell` and :func:`hw.spec.memory_ports.weight_edge`.
    sums : sums edge, in
        Sums from the row above and to the row below; see :func:`hw.spec.memory_ports.sums_edge`.
    """

    def __init__(self, *, n, stages, weight_rows=1):
        self.n = n
        self.stages = stages
        self.weight_rows = weight_rows
        super().__init__({"x_i": In(16), "weights": In(weight_edge(1, weight_rows)), "sums": In(sums_edge(n))})

    def elaborate(self, platform):
        m = Module()
        moving = {"x": self.x_i, "w": None, "mark": self.weights.mark, "switch": self.weights.switch}
        words = [self.weights.w] if self.weight_rows == 1 else [self.weights.w[:16], self.weights.w[16:]]
        for c in range(self.n):
            stream = c % self.weight_rows
            moving["w"] = words[stream]
            right = {name: Signal(len(value), name=f"{name}_{c}") for name, value in moving.items()}
            instantiate(
                m,
                platform,
                lambda: Cell(stages=self.stages, weight_rows=self.weight_rows),
                name=f"cell_{c}",
                module="tpu_cell",
                **{f"{name}_i": value for name, value in moving.items()},
                **{f"{name}_o": value for name, value in right.items()},
                sum_i=self.sums.top.word_select(c, 32),
                sum_o=self.sums.bottom.word_select(c, 32),
            )
            moving, words[stream] = right, right["w"]
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
    weight_rows : int
        Words of weights that enter a row in a cycle, 1 or 2.
    rows : int
        Rows, at most `band` or a multiple of it. Default: `n`.

    Members
    -------
    x_i : 16 rows, in
        Operands, row 0 lowest.
    weights : weight edge, in
        See :func:`hw.spec.memory_ports.weight_edge`.
    sums : sums edge, in
        See :func:`hw.spec.memory_ports.sums_edge`.
    """

    #: Rows of a submodule. Bands keep the size of the top module and the time to generate it from growing with n * n.
    band = 8

    def __init__(self, *, n, stages, weight_rows=1, rows=None):
        self.n = n
        self.stages = stages
        self.weight_rows = weight_rows
        self.rows = rows or n
        edge = weight_edge(self.rows, weight_rows)
        super().__init__({"x_i": In(16 * self.rows), "weights": In(edge), "sums": In(sums_edge(n))})

    def elaborate(self, platform):
        m = Module()
        sizes = {"n": self.n, "stages": self.stages, "weight_rows": self.weight_rows}
        if self.rows > self.band:
            part, height, make = "band", self.band, lambda: SystolicArray(rows=self.band, **sizes)
        else:
            part, height, make = "row", 1, lambda: SystolicRow(**sizes)
        count = self.rows // height
        above = self.sums.top
        for i in range(count):
            below = self.sums.bottom if i == count - 1 else Signal(32 * self.n, name=f"sums_{i}")
            instantiate(
                m,
                platform,
                make,
                name=f"{part}_{i}",
                module=f"tpu_{part}",
                x_i=self.x_i.word_select(i, 16 * height),
                weights__w=self.weights.w.word_select(i, 16 * height * self.weight_rows),
                weights__mark=self.weights.mark.word_select(i, height),
                weights__switch=self.weights.switch.word_select(i, height),
                sums__top=above,
                sums__bottom=below,
            )
            above = below
        return m
