# amaranth: UnusedElaboratable=no
"""Tests of the update unit against the golden arithmetic, with operations back to back and apart."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from amaranth_tpu.hw.activation.update_unit import UpdateUnit, update_cycles
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.operations import activate_layout
from amaranth_tpu.sim.benches.activation_model import canonical
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.number_classes import numbers
from suites import slow


def _expected(sums, biases, rows, acc, bias, momentum, rate):
    master, moved = biases[bias : bias + rows], biases[bias + rows : bias + 2 * rows] >> 16
    moved = golden.add(sums[acc : acc + rows], golden.multiply(moved.astype(np.uint16), np.uint16(momentum)))
    moved = golden.to_bfloat16(golden.without_minus_zero(moved))
    master = golden.without_minus_zero(golden.add(master, golden.multiply(moved, np.uint16(rate))))
    return np.stack([moved, master >> 16, master & 0xFFFF], axis=1)


class _Bench:
    """A memory model around the unit. `written` has the update memory, `done` the slots in order, each with its cycle."""

    def __init__(self, unit, sums, biases, depth, operations):
        self.unit, self.sums, self.biases, self.operations = unit, sums, biases, operations
        self.written, self.done, self.last_write = np.zeros((depth, 3, unit.n), np.uint32), [], 0

    @staticmethod
    def _packed(row):
        return sum(int(bits) << 32 * lane for lane, bits in enumerate(row))

    async def run(self, ctx):
        unit, cycle = self.unit, 0
        for number, (fields, gap) in enumerate(self.operations):
            for _ in range(gap):
                await self._tick(ctx, cycle := cycle + 1)
            ctx.set(unit.port.op.payload, {**fields, "update": 1, "tag": {"slot": number % 8}})
            ctx.set(unit.port.op.valid, 1)
            while not ctx.get(unit.port.op.ready):
                await self._tick(ctx, cycle := cycle + 1)
            await self._tick(ctx, cycle := cycle + 1)
            ctx.set(unit.port.op.valid, 0)
        while len(self.done) < len(self.operations):
            await self._tick(ctx, cycle := cycle + 1)

    async def _tick(self, ctx, cycle):
        unit = self.unit
        assert cycle < 1000, "the unit does not end"
        row, bias = (ctx.get(port.row) if ctx.get(port.read) else None for port in (unit.sums, unit.biases))
        groups, place, data = (ctx.get(getattr(unit.updates, name)) for name in ("write", "row", "data"))
        if ctx.get(unit.port.done):
            self.done.append((ctx.get(unit.port.done_slot), cycle - self.last_write))
        for group in range(unit.n // unit.lanes):
            for lane in range(unit.lanes if groups >> group & 1 else 0):
                parts = [data >> 48 * lane + 16 * part & 0xFFFF for part in range(3)]
                self.written[place, :, group * unit.lanes + lane], self.last_write = parts, cycle
        await ctx.tick()
        if row is not None:
            ctx.set(unit.sums.data, self._packed(self.sums[row]))
        if bias is not None:
            ctx.set(unit.biases.data, self._packed(self.biases[bias]))


# promise: no-minus-zero
@pytest.mark.parametrize(
    "n, lanes, stages", [(4, 1, 3), (4, 2, 2), *slow((8, 2, 9), (4, 4, 1), (2, 2, 5), (8, 2, 7), (8, 1, 4), (4, 1, 8))]
)
def test_rows_are_updated(rng, n, lanes, stages):
    """Every part of every row equals the golden arithmetic, special values included. `done` comes in order, one cycle after the
    last write of its operation."""
    config = Config(n=n, cell_stages=stages, accumulator_depth=32, bias_depth=64, training=True, update_lanes=lanes)
    unit = UpdateUnit(n=n, lanes=lanes, activate=activate_layout(config), lead=config.lead, latency=config.latency)
    sums, biases = canonical(numbers(rng, (32, n), 0.4)), numbers(rng, (64, n), 0.4)
    biases = np.where(biases & 0x7FFFFFFF > 0x7F800000, np.uint32(golden.NAN), biases)
    operations, expected, row = [], np.zeros((64, 3, n), np.uint32), 0
    for rows in (1, 3, 1, 2, 8, 1, 5):
        fields = {"rows": rows, "acc": rng.integers(32 - rows + 1), "bias": rng.integers(64 - 2 * rows + 1)}
        fields = {name: int(value) for name, value in fields.items()}
        fields |= {"momentum": int(rng.choice([0x3F66, 0, 0x3F80, 0xBE00])), "rate": int(rng.choice([0xBACD, 0x3F80, 0xBF80]))}
        expected[row : row + rows] = _expected(sums, biases, **fields)
        operations.append({**fields, "update_row": row})
        row += rows
    gaps = [0, 0, 0, int(rng.integers(1, 30)), 0, int(rng.integers(1, 5)), 0]
    bench = _Bench(unit, sums, biases, 64, list(zip(operations, gaps)))
    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench.run)
    simulator.run()
    assert [slot for slot, _ in bench.done] == list(range(len(operations)))
    assert bench.done[-1][1] == 1
    assert (bench.written == expected).all()


def test_rate_of_rows(rng):
    """A row takes one cycle for each group of lanes, and at least two."""
    assert [update_cycles(8, lanes) for lanes in (1, 2, 4, 8)] == [8, 4, 2, 2]
