"""The writer of results in a training step, including indices of maxima, masked gradients, and gradients with inserted zeros."""

from amaranth_tpu.hw.spec.isa import Condition, Format, Opcode

from ..compiler.codegen.results import Results
from ..functions.functions import NONE

__all__ = ["StepResults"]


class StepResults(Results):
    """The writer of results for spatial stages, both forward and backward."""

    def activate(self, rectangle, column, acc, result, factor):
        """Writes all outputs that a stage computes from a rectangle of sums: results, indices of maxima, and gradients. Indices
        are computed from the sums; a function by table is not applied to them."""
        made = [(result, (1, 1), False)]
        made += [(placed, extra.spread, extra.index) for placed, extra in zip(result.extras, self.stage.extras)]
        for placed, spread, index in made:
            if self.stage.select or spread != (1, 1):
                self._spread(rectangle, column, acc, placed, spread, factor)
                continue
            self.format = Format.INDEX if index else Format.BFLOAT16
            self.function = NONE if index and self.stage.function.is_table else self.stage.function
            super().activate(rectangle, column, acc, placed, factor)

    def store(self, result):
        super().store(result)
        for placed, extra in zip(result.extras, self.stage.extras):
            self.store_area(placed, extra.tensor)

    def _spread(self, rectangle, column, acc, placed, spread, factor):
        """Writes sums to positions in windows, or writes sums with zeros inserted between positions. This takes one instruction
        for each sample and each position in the window."""
        samples, rows, columns = rectangle.sums
        select, (down, across) = self.stage.select, [a * b for a, b in zip(self.stage.window, spread)]
        for sample in range(samples):
            for place in range(self.stage.window[0] * self.stage.window[1]):
                wy, wx = divmod(place, self.stage.window[1])
                y, x = rectangle.rows[0] * down + wy * spread[0], rectangle.columns[0] * across + wx * spread[1]
                fields = {
                    "acc": acc + sample * rows * columns,
                    "rows0": columns,
                    "rows0_stride": 1,
                    "rows1": rows,
                    "rows1_stride": columns,
                    "buffer": placed.at(rectangle.samples[0] + sample, y, column, x),
                    "buffer_stride": placed.area.row * down,
                    "buffer_step": across,
                }
                if select is None:
                    self._apart(fields, column)
                    continue
                first = rectangle.samples[0] + sample, rectangle.rows[0], column, rectangle.columns[0]
                fields |= {
                    "condition": Condition.EQUAL if select.index else Condition.POSITIVE,
                    "number": place if select.index else 0,
                    "operand": factor.at(*first),
                    "operand_stride": factor.area.row,
                }
                self.emitter.emit(Opcode.SELECT, fields)

    def _apart(self, fields, column):
        """Writes results with zeros inserted between the positions."""
        ones = {"window0": 1, "window1": 1, "window0_stride": 0, "window1_stride": 0}
        self.emitter.emit(Opcode.POOL, {**self.fields(column), **ones, **fields})
