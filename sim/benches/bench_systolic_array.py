"""Bench of the systolic array against the golden model. Tiles of weights shift in while earlier tiles are in use."""

import cocotb
import numpy as np

from amaranth_tpu.hw.array.systolic_array import SystolicArray
from amaranth_tpu.hw.spec.cell_stages import split_stages

from ..golden import arithmetic as golden
from ..rtl.bench_side import arguments, report
from ..rtl.number_classes import numbers
from ..rtl.ports import play


def schedule(rng, tile_cycles, n, tiles):
    """Returns, for each tile, the cycles in which its mark, its switch and its rows of operands arrive at row 0 of the array.

    The schedule is as dense as the component's docstring allows, with some gaps. A mark may coincide with the previous switch or
    follow it. A switch follows its mark after `tile_cycles`, and the first row follows the switch after one cycle.
    """
    mark, plan = rng.randrange(3), []
    switch = mark + tile_cycles + rng.choice((0, 0, 2))
    for _ in range(tiles):
        length = rng.choice((1, tile_cycles, n, 2 * n + 1))
        rows = [switch + 1 + row for row in range(length) if rng.random() < 0.9]
        plan.append((mark, switch, rows))
        mark = switch + rng.choice((0, 0, 0, 3))
        switch = max(mark + tile_cycles, switch + length) + rng.choice((0, 0, 0, 4))
    return plan


async def tiles(ports, rng, *, n, stages, count, weight_rows=1):
    """Feeds `count` tiles and their rows into the array, with random values on idle inputs. Returns the number of sums
    compared."""
    lead, latency = split_stages(stages)
    plan = schedule(rng, n // weight_rows, n, count)
    words, marks, operands, starts, expected = {}, set(), {}, {}, {}
    for mark, _, rows in plan:
        wild = rng.choice((0, 0, 0.1))
        weights = numbers(rng, (n, n), wild, 16).tolist()
        marks.add(mark)
        for c in range(n):
            moved, stream = divmod(c, weight_rows)
            words[mark + moved + stream, stream] = [weights[r][c] for r in range(n)]
        for row in rows:
            wild = rng.choice((0, 0, 0.1))
            operands[row] = numbers(rng, n, wild, 16).tolist()
            starts[row] = numbers(rng, n, wild).tolist()
            sums = np.array(starts[row], np.uint32)
            for r in range(n):
                sums = golden.multiply_accumulate(sums, np.uint32(operands[row][r]), np.array(weights[r], np.uint32))
            expected[row] = sums.tolist()
    switches = {switch for _, switch, _ in plan}

    compared = 0
    for cycle in range(max(expected) + lead + n + n * latency + 1):
        there = [cycle - r * latency for r in range(n)]
        above = [cycle - lead - c for c in range(n)]
        ports.set(
            weights__w=[
                words[t, stream][r] if (t, stream) in words else rng.getrandbits(16)
                for r, t in enumerate(there)
                for stream in range(weight_rows)
            ],
            weights__mark=[t in marks for t in there],
            weights__switch=[t in switches for t in there],
            x_i=[operands[t][r] if t in operands else rng.getrandbits(16) for r, t in enumerate(there)],
            sums__top=[starts[t][c] if t in starts else rng.getrandbits(32) for c, t in enumerate(above)],
        )
        await ports.settle()
        for c, found in enumerate(ports.lanes("sums__bottom", n)):
            row = cycle - lead - c - n * latency
            if row in expected:
                right = expected[row][c]
                assert found == right, f"cycle {cycle}: column {c} of the row of cycle {row} is {found}, not {right:#010x}"
                compared += 1
        await ports.tick()
    assert compared == n * len(expected)
    return compared


@cocotb.test()
async def random_tiles(dut):
    job = arguments()
    component = SystolicArray(n=job["n"], stages=job["stages"], weight_rows=job["weight_rows"])
    report({"compared": await play(dut, component, tiles, **job)})
