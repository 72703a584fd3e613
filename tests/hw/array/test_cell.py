# amaranth: UnusedElaboratable=no
"""Tests of the cell of the systolic array for every number of pipeline stages, covering forwarded data, latencies and
arithmetic."""

import numpy as np
import pytest
from amaranth.hdl import ClockDomain, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.spec.cell_stages import STAGES, split_stages
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.rtl.streams import StreamedBlock, simulate_columns
from seeds import seed
from suites import all_but


class CellBench(wiring.Component):
    """Several cells with different numbers of pipeline stages, all with the same operands. A cell that needs its sum `lead`
    cycles late reads input `sum_i_{lead}`."""

    def __init__(self, stages=STAGES):
        self.stages = tuple(stages)
        super().__init__(
            {
                "x_i": In(16),
                "w_i": In(16),
                "mark_i": In(1),
                "switch_i": In(1),
                **{f"sum_i_{lead}": In(32) for lead in range(4)},
                **{
                    f"{name}_{stages}": Out(width)
                    for stages in self.stages
                    for name, width in (("x_o", 16), ("w_o", 16), ("mark_o", 1), ("switch_o", 1), ("sum_o", 32))
                },
            }
        )

    def elaborate(self, platform):
        m = Module()
        for stages in self.stages:
            m.submodules[f"cell_{stages}"] = cell = Cell(stages=stages)
            m.d.comb += [getattr(cell, name).eq(getattr(self, name)) for name in ("x_i", "w_i", "mark_i", "switch_i")]
            m.d.comb += cell.sum_i.eq(getattr(self, f"sum_i_{cell.lead}"))
            m.d.comb += [
                getattr(self, f"{name}_{stages}").eq(getattr(cell, name))
                for name in ("x_o", "w_o", "mark_o", "switch_o", "sum_o")
            ]
        return m


def operands(rng, cycles):
    """Returns random input columns of a cell. Marks and switches often coincide, and sums often cancel the product that is added
    to them."""
    columns = {
        "x_i": numbers(rng, cycles, 0.5, 16),
        "w_i": numbers(rng, cycles, 0.5, 16),
        "mark_i": rng.integers(0, 2, cycles, dtype=np.uint32),
        "switch_i": rng.integers(0, 2, cycles, dtype=np.uint32),
    }
    product = golden.multiply(columns["x_i"], active_weights(columns))
    close = (product ^ np.uint32(1 << 31)) + rng.integers(0, 4, cycles, dtype=np.uint32) - np.uint32(1)
    scaled = numbers(rng, cycles, 0.5) & np.uint32(0x807FFFFF)
    distance = np.choose(rng.integers(0, 2, cycles), [rng.integers(-27, 28, cycles), rng.integers(-3, 4, cycles)])
    scaled |= np.clip((product >> np.uint32(23) & np.uint32(0xFF)).astype(int) + distance, 0, 255).astype(np.uint32) << np.uint32(
        23
    )
    columns["sum_i"] = np.choose(rng.integers(0, 4, cycles), [close, scaled, scaled, numbers(rng, cycles, 0.5)])
    return columns


def active_weights(columns):
    """Returns the active weight of each cycle, computed from marks and switches one cycle at a time; 0 before the first
    switch."""
    shadow = active = 0
    weights = []
    for w, mark, switch in zip(columns["w_i"], columns["mark_i"], columns["switch_i"]):
        weights.append(active)
        active, shadow = shadow if switch else active, w if mark else shadow
    return np.array(weights, dtype=np.uint32)


def delayed(values, cycles):
    return np.concatenate([np.zeros(cycles, dtype=np.uint32), values])[: len(values)]


def check(columns, outputs, stages):
    """Compares the outputs of the cell with `stages` stages, one value a cycle, with the golden model at the documented
    latencies."""
    lead, latency = split_stages(stages)
    total = golden.multiply_accumulate(columns["sum_i"], columns["x_i"], active_weights(columns))
    for name, values, cycles in (
        ("x_o", columns["x_i"], 1),
        ("w_o", columns["w_i"], 1),
        ("mark_o", columns["mark_i"], 2),
        ("switch_o", columns["switch_i"], 1),
        ("sum_o", total, lead + latency),
    ):
        expected, found = delayed(values, cycles)[cycles:], outputs[f"{name}_{stages}"][cycles:]
        wrong = np.flatnonzero(expected != found)
        assert not len(wrong), (
            f"{stages} stages: {name} wrong in {len(wrong)} cycles of {len(found)}, first "
            f"in {wrong[0] + cycles}: {found[wrong[0]]:08x}, not {expected[wrong[0]]:08x}"
        )


def inputs_of(columns):
    return {
        **{name: columns[name] for name in ("x_i", "w_i", "mark_i", "switch_i")},
        **{f"sum_i_{lead}": delayed(columns["sum_i"], lead) for lead in range(4)},
    }


# promise: cell
@pytest.mark.parametrize("stages", all_but([1, 8], STAGES))
def test_random(stages):
    columns = operands(np.random.default_rng([seed(), stages]), 700)
    check(columns, simulate_columns(CellBench([stages]), **inputs_of(columns)), stages)


def test_switch_takes_the_old_shadow_weight():
    """A switch in the same cycle as a mark activates the weight of the preceding mark (1.0, not 2.0)."""
    one, two, three = 0x3F80, 0x4000, 0x4040
    inputs = {
        "w_i": [one, 0, two, three, 0, 0, 0, 0, 0],
        "mark_i": [1, 0, 1, 0, 0, 0, 0, 0, 0],
        "switch_i": [0, 0, 1, 0, 0, 1, 0, 0, 0],
        "x_i": [one] * 9,
    }
    found = simulate_columns(CellBench([1]), **inputs)["sum_o_1"]
    #                            cycle of x: 3  4  5  6  7
    assert [hex(v) for v in found[4:9]] == [hex(v << 16) for v in (one, one, one, two, two)]


def test_reset_clears_marks_and_switches():
    component = CellBench([2])

    async def bench(ctx):
        ctx.set(component.mark_i, 1)
        ctx.set(component.switch_i, 1)
        await ctx.tick().repeat(3)
        assert ctx.get(component.mark_o_2) == 1 and ctx.get(component.switch_o_2) == 1
        ctx.set(clock.rst, 1)
        await ctx.tick()
        ctx.set(clock.rst, 0)
        ctx.set(component.mark_i, 0)
        ctx.set(component.switch_i, 0)
        assert ctx.get(component.mark_o_2) == 0 and ctx.get(component.switch_o_2) == 0
        await ctx.tick()
        assert ctx.get(component.mark_o_2) == 0 and ctx.get(component.switch_o_2) == 0

    clock = ClockDomain("sync")
    m = Module()
    m.domains += clock
    m.submodules.cells = component
    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()


@pytest.mark.parametrize("stages", [0, 10, 2.0, "3", True])
def test_rejects(stages):
    with pytest.raises(ValueError, match=f"not {stages!r}"):
        Cell(stages=stages)


def test_split():
    assert [split_stages(stages) for stages in STAGES] == [(0, 1), (1, 1), (2, 1), (1, 3), (1, 4), (2, 4), (2, 5), (3, 5), (3, 6)]


@pytest.mark.slow
def test_two_million_cycles():
    """Compares two million random cycles of each number of stages with the golden model, in compiled simulation."""
    block = StreamedBlock(CellBench())
    for part in range(4):
        columns = operands(np.random.default_rng([seed(), part, 99]), 500_000)
        outputs = block.run(**inputs_of(columns))
        for stages in STAGES:
            check(columns, outputs, stages)
