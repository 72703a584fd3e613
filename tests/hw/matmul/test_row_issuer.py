# amaranth: UnusedElaboratable=no
"""Tests of the row issuer, covering rows of random passes, tile switches, the interlock on sums in flight, and the rate of
passes."""

import random

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.matmul.row_issuer import RowIssuer
from amaranth_tpu.hw.spec.operations import pass_layout
from amaranth_tpu.sim.rtl.ports import pack, simulate, unpack
from matmuls import bias_rows, rows
from seeds import seed
from suites import all_but, slow

SIZES = {"n": 4, "unified_buffer_depth": 256, "accumulator_depth": 32, "bias_depth": 32}
LAYOUT = pass_layout(Config(**SIZES, attention=False))
ATTENTION = pass_layout(Config(**SIZES))


def make_pass(**values):
    fields = dict(start=1, keep=0, buffer=0, acc=0, bias=0, rows=4, rows0=4, rows0_stride=1, rows1_stride=0, last=0, slot=3)
    fields.update(values)
    return {**fields, "end": fields["acc"] + fields["rows"]}


def random_pass(rng, longest):
    rows0 = rng.choice((1, rng.randrange(1, longest + 1)))
    rows1 = rng.randrange(1, longest // rows0 + 1)
    return make_pass(
        start=int(rng.random() < 0.2),
        keep=int(rng.random() < 0.3),
        buffer=rng.randrange(64),
        acc=rng.randrange(33 - rows0 * rows1),
        bias=rng.randrange(16),
        rows=rows0 * rows1,
        rows0=rows0,
        rows0_stride=rng.randrange(5),
        rows1_stride=rng.randrange(8),
        last=rng.getrandbits(1),
        slot=rng.randrange(Config().in_flight),
    )


async def traffic(ports, rng, *, layout, todo, delay, offers, tile, blocks=0.0):
    """Offers passes, blocked for a while with probability `blocks`. Rows are written `delay` cycles after their issue, and a tile
    is loaded `tile(rng)` cycles after a switch. Returns the cycles in which rows were issued."""
    row_layout = RowIssuer(pass_=layout).row_layout
    todo = list(todo)
    offered, loaded_at = None, 1 + rng.randrange(8)  # a tile that is loaded now was announced a cycle ago
    due = {}  # {cycle: expected row}
    written = {}  # {accumulator row: cycle in which its newest sum is written}
    flight = []  # passes in flight: (acc, end, first row written, last row written)
    begun = patience = free_at = 0
    issued = []
    while offered or todo or any(at > ports.cycle for at in written.values()):
        now = ports.cycle
        if offered is None and todo and rng.random() < offers:
            offered = todo.pop(0)
            ports.set(i__payload=pack(layout, **offered))
            free_at = now + (rng.randrange(20) if rng.random() < blocks else 0)
        every = (1 << Config().in_flight) - 1
        others = every ^ 1 << (offered["slot"] if offered else 0)
        ports.set(blocked=rng.randrange(every + 1) & others | (0 if now >= free_at else every ^ others))
        back = due.get(now - delay, {"first": 0, "last": 0})
        loaded, coming = loaded_at <= now, loaded_at <= now + 1
        ports.set(i__valid=offered is not None, coming=coming, written_first=back["first"], written_last=back["last"])
        await ports.settle()
        go, switch = offered is not None and ports.get("i__ready") == 1, ports.get("switch")

        # Once a pass begins, a row issues in every cycle. A row that continues a sum issues only after the sum was written.
        assert ports.get("row_valid") == (now in due), f"cycle {now}: {'no' if now in due else 'a'} row"
        if now in due:
            issued.append(now)
            found, right = unpack(row_layout, ports.get("row")), due[now]
            assert {name: found[name] for name in right} == right, f"cycle {now}: {found}, not {right}"
            assert right["start"] or written.get(right["acc"], -1) < now, (
                f"cycle {now}: accumulator row {right['acc']} is read, and written only in cycle {written[right['acc']]}"
            )
            written[right["acc"]] = now + delay

        # A pass begins after the preceding pass, when its tile is loaded, and without unnecessary delay.
        between = not any(at > now for at in due)
        new_tile = offered is not None and not offered["keep"]
        assert switch == (go and new_tile), f"cycle {now}: switch is {switch}"
        assert not switch or loaded, f"cycle {now}: a switch to a tile that is not loaded"
        waits, held = (ports.get("waits_weights"), ports.get("waits_sums")), ports.get("held")
        assert not held or not go and between and now <= free_at, f"cycle {now}: held"
        assert not go or now > free_at, f"cycle {now}: begins, and is blocked"
        if held:
            assert waits == (0, 0) and ports.get("head_slot") == offered["slot"], f"cycle {now}: waits {waits}"
        elif offered is None or go or not between:
            assert waits == (0, 0), f"cycle {now}: waits {waits}"
        else:
            assert waits == ((1, 0) if new_tile and not loaded else (0, 1)), f"cycle {now}: waits {waits}"
        flight = [entry for entry in flight if entry[3] >= now]
        if offered is not None:
            free = between and now > free_at and (loaded or not new_tile) and len(flight) < RowIssuer.in_flight
            for low, end, first, last in flight if not offered["start"] else ():
                if offered["acc"] < end and low < offered["acc"] + offered["rows"]:
                    free = free and (first if offered["acc"] <= low else last) < now
            patience = patience + 1 if free and not go else 0
            assert patience <= 1, f"cycle {now}: {offered} could begin"
        if go:
            assert between, f"cycle {now}: a pass begins inside another"
            for index, ((buffer, acc), bias) in enumerate(zip(rows(offered), bias_rows(offered))):
                due[now + 1 + index] = {
                    "buffer": buffer,
                    "acc": acc,
                    "start": offered["start"],
                    **({"bias": bias} if offered["start"] else {}),
                    "first": int(index == 0),
                    "last": int(index == offered["rows"] - 1),
                    "last_pass": offered["last"],
                }
            flight.append((offered["acc"], offered["acc"] + offered["rows"], now + 1 + delay, now + offered["rows"] + delay))
            if switch:
                loaded_at = now + tile(rng)
            offered, begun, patience = None, begun + 1, 0
        await ports.tick()
    return issued


def run(todo, layout=LAYOUT, **options):
    return simulate(RowIssuer(pass_=layout), traffic, seed=seed(), layout=layout, todo=todo, **options)


PACES = (1, 1), (1, 12), (0.3, 4)


@pytest.mark.parametrize(
    "delay, longest, pace",
    all_but([(4, 9, PACES[0]), (9, 2, PACES[1]), (14, 9, PACES[2]), (40, 2, PACES[0])], (4, 9, 14, 40), (2, 9), PACES),
    ids=str,
)
def test_random(delay, longest, pace):
    offers, slowest = pace
    rng = random.Random(seed())
    todo = [random_pass(rng, longest) for _ in range(120)]
    run(todo, delay=delay, offers=offers, tile=lambda rng: rng.randrange(2, slowest + 2), blocks=0.3)


@pytest.mark.parametrize("delay, longest, offers", all_but([(4, 9, 0.3), (14, 2, 1)], (4, 14), (2, 9), (1, 0.3)))
def test_one_bias_row_per_row(delay, longest, offers):
    """The issued rows equal the model's if passes with one bias row per row, passes with a single bias row, and passes that
    continue earlier sums alternate."""
    rng = random.Random(seed())
    todo = [random_pass(rng, longest) | {"start": int(rng.random() < 0.7), "bias_rows": rng.getrandbits(1)} for _ in range(120)]
    run(todo, ATTENTION, delay=delay, offers=offers, tile=lambda rng: rng.randrange(2, 6), blocks=0.3)


# promise: pass-cycles
@pytest.mark.parametrize("n", [*slow(2), 4, *slow(8)])
@pytest.mark.parametrize("length", [1, *slow(2), 3, 4, 7, *slow(8, 16)])
def test_one_tile_every_max_of_rows_and_n(n, length):
    """With a tile loaded n cycles after each switch and no hazards, a pass of `length` rows takes max(length, n) cycles."""
    issued = run([make_pass(rows=length, rows0=length)] * 8, delay=12, offers=1, tile=lambda rng: n)
    period = max(length, n)
    assert issued == [issued[0] + tile * period + row for tile in range(8) for row in range(length)]


def test_sums_that_return_in_time_do_not_stall():
    """A pass that continues the sums of the preceding pass follows without a gap if these sums are written in time."""
    todo = [make_pass(start=int(index == 0), rows=24, rows0=24, acc=5) for index in range(5)]
    issued = run(todo, delay=20, offers=1, tile=lambda rng: 4)
    assert issued == list(range(issued[0], issued[0] + 5 * 24))


def test_ninth_pass_waits_for_the_first():
    """The row issuer's interlock tracks eight passes in flight. With short passes and a delay of 50 cycles, the ninth pass waits
    until the first has ended."""
    issued = run([make_pass(rows=2, rows0=2, acc=2 * (index % 8)) for index in range(30)], delay=50, offers=1, tile=lambda rng: 2)
    assert issued[:16] == list(range(issued[0], issued[0] + 16)) and issued[16] > issued[1] + 50
