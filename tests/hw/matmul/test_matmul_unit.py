# amaranth: UnusedElaboratable=no
"""Tests of the matrix multiply unit, covering the cycles of reads and writes of each row, the order of ends, and the idle
flag."""

import random

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.matmul.matmul_unit import MatmulUnit
from amaranth_tpu.hw.spec.operations import matmul_layout, pass_layout
from amaranth_tpu.sim.rtl.ports import simulate
from matmuls import bias_rows, offer, passes, random_matmul, rows
from seeds import seed
from suites import slow


def configuration(n, stages, **changes):
    sizes = {"unified_buffer_depth": 64, "accumulator_depth": 32, "bias_depth": 16, "in_flight": 8}
    return Config(n=n, cell_stages=stages, **sizes, **changes)


async def operations(ports, rng, *, config, todo, offers, tile):
    """Offers operations with probability `offers` per cycle, and checks them. A tile is ready `tile(rng)` cycles after each
    switch. Returns the cycles of issued rows."""
    n, lead = config.n, config.array_lead
    read_after = 1 + lead - config.read_latency
    way = 1 + lead + n * config.latency
    todo = list(todo)
    due = []  # expected rows: (buffer, acc, bias or None, operation to end or None, needs a new tile)
    reads, writes, written, ends = {}, {}, {}, []
    offered, loaded_at, switched, quiet = None, 0, False, 0
    issued = []
    while quiet < way + n + 5:
        now = ports.cycle
        if offered is None and todo and rng.random() < offers:
            offered = todo.pop(0)
            ports.set(port__op__payload=offer(config, offered))
        ports.set(port__op__valid=offered is not None, tiles__coming=loaded_at <= now + 1)
        await ports.settle()

        row = ports.get("issue__issued")
        if row:
            assert due, f"cycle {now}: a row too many"
            buffer, acc, bias, ending, new_tile = due.pop(0)
            issued.append(now)
            assert ports.get("address") == buffer, f"cycle {now}: address {ports.get('address')}, not {buffer}"
            assert new_tile is None or switched == new_tile, f"cycle {now}: switched is {switched} before a pass"
            reads[now + read_after] = acc, bias
            writes[now + way] = acc
            assert bias is not None or written.get(acc, -1) < now + read_after, (
                f"cycle {now}: row {acc} is read, and still under way"
            )
            written[acc] = now + way
            if ending is not None:
                ends.append((now + way + n - 1, ending))
        else:
            assert not switched, f"cycle {now}: a switch without a row"

        # The accumulators, as column 0 accesses them.
        if now in reads:
            acc, bias = reads.pop(now)
            assert ports.get("sums__start") == (bias is not None), f"cycle {now}: start"
            if bias is None:
                assert ports.get("sums__read_row") == acc, f"cycle {now}: reads row {ports.get('sums__read_row')}, not {acc}"
            else:
                assert ports.get("sums__bias_row") == bias, f"cycle {now}: bias row {ports.get('sums__bias_row')}, not {bias}"
        assert ports.get("sums__write") == (now in writes), f"cycle {now}: write is {ports.get('sums__write')}"
        if now in writes:
            acc = writes.pop(now)
            assert ports.get("sums__write_row") == acc, f"cycle {now}: writes row {ports.get('sums__write_row')}, not {acc}"

        # An operation ends a cycle before its last sum reaches the last column's memory.
        if ports.get("port__done"):
            assert ends and now >= ends[0][0] - 1, f"cycle {now}: done too early"
            assert ports.get("port__done_slot") == ends.pop(0)[1], f"cycle {now}: slot {ports.get('done_slot')}"
        assert not ends or now <= ends[0][0], f"cycle {now}: done is late"
        assert not ports.get("issue__idle") or not (due or row), f"cycle {now}: idle with {len(due)} rows to come"

        switched = ports.get("tiles__switch") == 1
        if switched:
            assert loaded_at <= now, f"cycle {now}: a switch to a tile that is not loaded"
            loaded_at = now + tile(rng)
        accepted = offered is not None and ports.get("port__op__ready")
        if accepted:
            for pass_ in passes(offered):
                starts = bias_rows(pass_) if pass_["start"] else [None] * pass_["rows"]
                for index, ((buffer, acc), bias) in enumerate(zip(rows(pass_), starts)):
                    ending = pass_["last"] and index == pass_["rows"] - 1
                    due.append(
                        (buffer, acc, bias, offered["tag"]["slot"] if ending else None, not pass_["keep"] if index == 0 else None)
                    )
        busy = offered or todo or due or writes
        if accepted:
            offered = None
        quiet = 0 if busy else quiet + 1
        await ports.tick()
        assert now < 20_000, "stuck"
    ports.set(port__op__valid=0)
    await ports.settle()
    assert ports.get("issue__idle") and not ends
    return issued


async def runs(ports, rng, *, config, todo, offers, tile):
    """Runs the operations, resets the unit during the first operation, and runs them again. Returns the cycles of issued rows."""
    await operations(ports, rng, config=config, todo=todo, offers=offers, tile=tile)
    ports.set(port__op__valid=1, port__op__payload=offer(config, todo[0]), tiles__coming=1)
    for _ in range(rng.randrange(8, 20)):
        await ports.tick()
    ports.set(port__op__valid=0, tiles__coming=0)
    await ports.reset()
    return await operations(ports, rng, config=config, todo=todo, offers=offers, tile=tile)


def unit(config):
    return MatmulUnit(
        n=config.n,
        lead=config.array_lead,
        latency=config.latency,
        read_latency=config.read_latency,
        matmul=matmul_layout(config),
        pass_=pass_layout(config),
    )


@pytest.mark.parametrize(
    "n, stages, offers, slowest",
    [
        (4, 3, 1, 1),
        (2, 1, 0.05, 10),
        *slow(
            *(
                (*size, *pace)
                for size in ((2, 1), (2, 3), (2, 8), (4, 2), (4, 3), (4, 4), (8, 3), (8, 5))
                for pace in ((1, 1), (0.05, 10))
            )
        ),
    ],
)
def test_random(n, stages, offers, slowest, **changes):
    config = configuration(n, stages, **changes)
    rng = random.Random(seed())
    todo = [random_matmul(rng, config, keep=0 if index == 0 else rng.getrandbits(1)) for index in range(15)]
    simulate(
        unit(config), runs, seed=seed(), config=config, todo=todo, offers=offers, tile=lambda rng: rng.randrange(2, slowest + 2)
    )


@pytest.mark.parametrize("n, stages", [(2, 1), *slow((2, 8), (4, 3))])
def test_one_bias_row_per_row(n, stages):
    """With `attention`, the unit reads one bias row per row, as the model does."""
    test_random(n, stages, 1, 1)


def test_not_idle_during_an_operation():
    """The matrix multiply unit is not idle while an accepted operation has rows left."""
    config = configuration(4, 3)
    matmul = random_matmul(random.Random(seed()), config, keep=0, start=1)
    matmul.update(tiles0=1, tiles1=1)
    simulate(unit(config), operations, seed=seed(), config=config, todo=[matmul], offers=1, tile=lambda rng: 2)


@pytest.mark.parametrize("n, stages", [(2, 3), *slow((4, 3), (4, 8))])
@pytest.mark.parametrize("length", [2, *slow(4), 9])
def test_one_tile_every_max_of_rows_and_n(n, stages, length):
    """A tile with `length` rows takes max(length, n) cycles, within an operation and across the border between two operations."""
    config = configuration(n, stages)
    rng = random.Random(seed())
    matmul = random_matmul(rng, config, start=1, keep=0)
    matmul.update(rows=length, rows0=length, rows0_stride=1, rows1_stride=0, bias=2, buffer=0, acc=0)
    matmul.update(tiles0=3, tiles0_stride=1, tiles0_acc_stride=0, tiles1=2, tiles1_stride=3, tiles1_acc_stride=length)
    issued = simulate(unit(config), operations, seed=seed(), config=config, todo=[matmul] * 2, offers=1, tile=lambda rng: n)
    assert issued == [issued[0] + tile * max(length, n) + row for tile in range(12) for row in range(length)]
