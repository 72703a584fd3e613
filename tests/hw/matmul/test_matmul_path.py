# amaranth: UnusedElaboratable=no
"""Tests of matrix multiplication against the golden model, with unit, weight FIFO, buffers and array wired as in the core."""

import random

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from amaranth_tpu.hw.array.accumulators import Accumulators
from amaranth_tpu.hw.array.systolic_array import SystolicArray
from amaranth_tpu.hw.array.unified_buffer import UnifiedBuffer
from amaranth_tpu.hw.array.weight_fifo import WeightFifo
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.matmul.matmul_unit import MatmulUnit
from amaranth_tpu.hw.spec.operations import matmul_layout, pass_layout
from amaranth_tpu.hw.spec.unit_ports import unit_port
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.rtl.ports import simulate
from matmuls import bias_rows, offer, passes, random_matmul, rows
from seeds import seed
from suites import slow


class MatmulPath(wiring.Component):
    """All blocks between a MATMUL and its sums: unit, unified buffer, weight FIFO, array and accumulators."""

    def __init__(self, config):
        self.config = config
        n = config.n
        self.unit = MatmulUnit(
            n=n,
            lead=config.array_lead,
            latency=config.latency,
            read_latency=config.read_latency,
            matmul=matmul_layout(config),
            pass_=pass_layout(config),
        )
        rows = {"weight_rows": config.weight_rows}
        self.fifo = WeightFifo(n=n, tiles=config.weight_fifo_depth, skew=config.latency, **rows)
        self.buffer = UnifiedBuffer(n=n, depth=config.unified_buffer_depth, skew=config.latency)
        self.array = SystolicArray(n=n, stages=config.cell_stages, **rows)
        self.accumulators = Accumulators(
            n=n, depth=config.accumulator_depth, bias_depth=config.bias_depth, latency=config.read_latency
        )
        super().__init__(
            {
                "port": In(unit_port(matmul_layout(config))),
                "vectors": self.buffer.signature.members["vectors"],
                "biases": self.accumulators.signature.members["biases"],
                "results": self.accumulators.signature.members["results"],
                "weights": self.fifo.signature.members["vectors"],
                "passes": self.unit.signature.members["sums"],
                "issue": self.unit.signature.members["issue"],
                "freed": Out(1),
                "bottom": Out(32 * n),
            }
        )

    def elaborate(self, platform):
        m = Module()
        unit, fifo, buffer, array, accumulators = self.unit, self.fifo, self.buffer, self.array, self.accumulators
        for name in ("unit", "fifo", "buffer", "array", "accumulators"):
            m.submodules[name] = getattr(self, name)
        connect(m, flipped(self.port), unit.port)
        connect(m, unit.tiles, fifo.tiles)
        connect(m, unit.sums, accumulators.passes, flipped(self.passes))
        for inside, outside in (
            (buffer.vectors, self.vectors),
            (accumulators.biases, self.biases),
            (accumulators.results, self.results),
            (fifo.vectors, self.weights),
            (unit.issue, self.issue),
        ):
            connect(m, inside, flipped(outside))
        connect(m, fifo.edge, array.weights)
        connect(m, accumulators.edge, array.sums)
        m.d.comb += [
            buffer.address.eq(unit.address),
            array.x_i.eq(buffer.x),
            self.freed.eq(fifo.freed),
            self.bottom.eq(array.sums.bottom),
        ]
        return m


def values(bits, kind):
    return np.array(bits, dtype=np.uint16).view(bfloat16) if kind == 16 else np.array(bits, dtype=np.uint32).view(np.float32)


def joined(bits, width):
    return sum(int(value) << width * index for index, value in enumerate(bits))


async def program(ports, rng, *, config, matmuls, wild, weights_pace):
    """Fills the memories, runs `matmuls`, and compares every written sum and the final accumulators with the golden model. `wild`
    is the probability of random bits, such as NaNs, in an operand. Returns the cycles in which rows were issued."""
    n = config.n
    buffer = numbers(rng, (config.unified_buffer_depth, n), wild, 16).tolist()
    biases = numbers(rng, (config.bias_depth, n), wild).tolist()
    tiles = [
        numbers(rng, (n, n), wild, 16).tolist()  # [tile][row][column]
        for operation in matmuls
        for pass_ in passes(operation)
        if not pass_["keep"]
    ]
    for row in range(max(len(buffer), len(biases))):
        if row < len(buffer):
            ports.set(vectors__write=1, vectors__address=row, vectors__vector=joined(buffer[row], 16))
        if row < len(biases):
            ports.set(biases__write=1, biases__row=row, biases__data=joined(biases[row], 32))
        await ports.tick()
        ports.set(vectors__write=0, biases__write=0)

    # The golden model
    sums = np.zeros((config.accumulator_depth, n), np.float32)
    tile, next_tile, results = None, iter(tiles), []  # results: (row, sums), in order
    for operation in matmuls:
        for pass_ in passes(operation):
            tile = tile if pass_["keep"] else values(next(next_tile), 16)
            operands, targets = zip(*rows(pass_))
            start = values([biases[row] for row in bias_rows(pass_)], 32) if pass_["start"] else sums[list(targets)]
            sums[list(targets)] = golden.matmul(values([buffer[row] for row in operands], 16), tile, start)
            results += [(row, sums[row].view(np.uint32).tolist()) for row in targets]

    written = freed = done = 0
    slots = [operation["tag"]["slot"] for operation in matmuls]
    todo, offered, issued, returned = list(matmuls), None, [], []  # returned: sums, by the cycle in which their column 0 appears
    while True:
        write = (
            written < n * len(tiles)
            and (written % n or written // n - freed < config.weight_fifo_depth)
            and rng.random() < weights_pace
        )
        if write:
            tile, column = divmod(written, n)
            vector = [tiles[tile][r][column] for r in range(n)]
            ports.set(weights__vector=joined(vector * config.weight_rows, 16))
        if offered is None and todo and written >= n * min(len(tiles), config.weight_fifo_depth):
            offered = todo.pop(0)
            ports.set(port__op__payload=offer(config, offered))
        ports.set(weights__write=write << written % config.weight_rows, port__op__valid=offered is not None)
        await ports.settle()
        written, freed = written + write, freed + ports.get("freed")
        if ports.get("issue__issued"):
            issued.append(ports.cycle)
        returned.append(None)
        if ports.get("passes__write"):
            assert results, f"cycle {ports.cycle}: a row too many"
            row, returned[-1] = results.pop(0)
            written_row = ports.get("passes__write_row")
            assert written_row == row, f"cycle {ports.cycle}: writes row {written_row}, not {row}"
        for column, found in enumerate(ports.lanes("bottom", n)[: len(returned)]):
            right = found if returned[-1 - column] is None else returned[-1 - column][column]
            assert found == right, f"cycle {ports.cycle}: column {column} is {found:08x}, not {right:08x}"
        if offered is not None and ports.get("port__op__ready"):
            offered = None
        if ports.get("port__done"):
            assert ports.get("port__done_slot") == slots[done]
            done += 1
            if done == len(matmuls):
                break
        await ports.tick()
        assert ports.cycle < 20_000, f"stuck: {done} of {len(matmuls)} operations, {written} vectors of weights"
    ports.set(weights__write=0, port__op__valid=0)

    # From two cycles after the last `done`, reads all sums, starting with the last row.
    for _ in range(2):
        await ports.tick()
    last_row = [acc for pass_ in passes(matmuls[-1]) for _, acc in rows(pass_)][-1]
    for row in (last_row, *range(config.accumulator_depth)):
        ports.set(results__row=row, results__read=1)
        await ports.tick()
        found, right = ports.lanes("results__data", n), sums[row].view(np.uint32).tolist()
        assert found == right, f"row {row}: {[f'{bits:08x}' for bits in found]}, not {[f'{bits:08x}' for bits in right]}"
    return issued


# promise: tile-order, sum-order
@pytest.mark.parametrize(
    "n, stages, count, wild, weights_pace",
    [
        (2, 3, 4, 0.02, 0.4),
        *slow((2, 1, 8, 0, 1), (2, 2, 8, 0.02, 0.4), (2, 3, 8, 0, 1), (2, 3, 8, 0.02, 0.4), (2, 4, 8, 0, 0.4)),
        *slow((2, 8, 8, 0, 1), (4, 3, 3, 0.003, 1), (4, 5, 2, 0, 0.4)),
    ],
)
def test_random(n, stages, count, wild, weights_pace, **changes):
    sizes = {"unified_buffer_depth": 64, "accumulator_depth": 16, "bias_depth": 8, "weight_fifo_depth": 4} | changes
    config = Config(n=n, cell_stages=stages, **sizes)
    rng = random.Random(seed())
    matmuls = [random_matmul(rng, config, keep=int(index > 0 and rng.random() < 0.3)) for index in range(count)]
    simulate(MatmulPath(config), program, seed=seed(), config=config, matmuls=matmuls, wild=wild, weights_pace=weights_pace)


@pytest.mark.parametrize("n, stages, count", [(2, 1, 3), *slow((2, 1, 8), (2, 8, 8), (4, 3, 4))])
def test_one_bias_row_per_row(n, stages, count):
    """With `attention`, MATMULs that use one bias row per row match the golden model."""
    test_random(n, stages, count, 0.01, 1, bias_depth=16)


@pytest.mark.slow
@pytest.mark.parametrize("attention, weight_rows", [(False, 1), (True, 1), (True, 2)])
@pytest.mark.parametrize("n, stages", [(2, 3), (4, 3), (4, 8), (8, 3)])
def test_volume(n, stages, attention, weight_rows):
    rows = 1 if n == 2 else weight_rows
    test_random(n, stages, 60, 0.002, 0.8, attention=attention, bias_depth=16, weight_rows=rows)


# promise: tile-shift
@pytest.mark.parametrize(
    "n, stages, weight_rows, factor",
    [(2, 3, 1, 7), (4, 3, 2, 1), *slow((4, 1, 2, 1), (4, 3, 2, 2)), *slow(*((2, s, 1, f) for s in (3, 8) for f in (1, 2, 20)))],
)
def test_one_tile_every_max_of_rows_and_shift(n, stages, weight_rows, factor):
    """If weights arrive in time, tiles follow each other every max(n / weight_rows, rows) cycles without a gap. A tile
    accumulates on the preceding sums if it has enough rows for these sums to be written in time. Otherwise it starts new sums."""
    sizes = {"unified_buffer_depth": 64, "accumulator_depth": 32, "bias_depth": 8, "weight_fifo_depth": 16}
    config = Config(n=n, cell_stages=stages, weight_rows=weight_rows, **sizes)
    length = max(1, n * factor // 2)
    way = 1 + config.array_lead + n * config.latency
    matmul = random_matmul(random.Random(seed()), config, keep=0)
    matmul.update(start=int(length < way + 3), rows=length, rows0=length, rows0_stride=1, rows1_stride=0)
    matmul.update(tiles0=6, tiles0_stride=3, tiles0_acc_stride=0, tiles1=1, buffer=0, acc=0, bias=0, bias_rows=0)
    issued = simulate(MatmulPath(config), program, seed=seed(), config=config, matmuls=[matmul], wild=0, weights_pace=1)
    assert issued == [issued[0] + tile * max(length, n // weight_rows) + row for tile in range(6) for row in range(length)]
