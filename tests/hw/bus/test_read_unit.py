# amaranth: UnusedElaboratable=no
"""Tests that the read unit writes each vector to its row, ends operations in order, names the operation of an error, and requests
ahead of the data."""

import pytest

from amaranth_tpu.hw.bus.burst_splitter import burst_request
from amaranth_tpu.hw.bus.read_unit import ReadUnit
from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.instruction import Unit
from amaranth_tpu.hw.spec.operations import transfer_layout
from amaranth_tpu.sim.rtl.ports import pack, simulate, unpack
from seeds import seed
from suites import all_but

LAYOUT = transfer_layout(Config(n=4, transpose=True), Unit.LOAD)
TRAINING = transfer_layout(Config(n=4, training=True), Unit.LOAD)
TILES = transfer_layout(Config(n=4), Unit.WEIGHTS)


async def traffic(ports, rng, *, layout=LAYOUT, ratio, count, answers, failing=False):
    values = {"row": (1 << 12) - 80, "bias": 2, "half": 3, "transpose": 2}
    extra = [name for name in values if name in layout.members]
    todo = [
        {
            "tag": {"slot": rng.randrange(Config().in_flight)},
            "address": rng.randrange(1 << 16) * 8,
            "vectors": rng.choice((1, rng.randrange(2, 6), rng.randrange(1, 40))),
            **{name: rng.randrange(values[name]) for name in extra},
        }
        for _ in range(count)
    ]
    asked = [entry["address"] + 8 * beat for entry in todo for beat in range(entry["vectors"] * ratio)]
    vectors = [(entry, v) for entry in todo for v in range(entry["vectors"])]
    given, owed, beats, ahead = 0, 0, [], 0
    while vectors:
        accepts = rng.random() < 0.8
        ports.set(
            port__op__valid=given < count and rng.random() < 0.8,
            port__op__payload=pack(layout, **todo[given]) if given < count else 0,
            host__request__ready=accepts,
        )
        arrives = owed and rng.random() < answers
        fails = arrives and failing and len(vectors) < 20
        word = rng.getrandbits(64)
        ports.set(host__answer__valid=arrives and not fails, host__answer__error=fails, host__answer__data=word)
        await ports.settle()
        entry, v = vectors[0]
        if fails:
            assert ports.get("fault__valid") and ports.get("fault__slot") == entry["tag"]["slot"]
            return ahead
        assert not ports.get("fault__valid")
        if ports.get("host__request__valid") and accepts:
            request = unpack(burst_request(32), ports.get("host__request__payload"))
            for beat in range(request["beats"]):
                assert request["address"] + 8 * beat == asked.pop(0)
            owed += request["beats"]
        if arrives:
            beats.append(word)
            owed -= 1
        written = len(beats) == ratio
        assert ports.get("vectors__write") == written
        last = written and v == entry["vectors"] - 1
        assert ports.get("port__done") == last
        if written:
            assert ports.get("vectors__vector") == sum(beat << 64 * i for i, beat in enumerate(beats))
            right = {name: entry[name] for name in extra}
            if "row" in right:
                right["row"] += v * (2 if entry.get("half") else 1)  # a bias row has two vectors
            assert {name: ports.get(f"vectors__{name}") for name in extra} == right
            assert not last or ports.get("port__done_slot") == entry["tag"]["slot"]
            vectors.pop(0)
            beats = []
        given += ports.get("port__op__valid") and ports.get("port__op__ready")
        ahead = max(ahead, given - todo.index(entry))
        await ports.tick()
    assert not asked and not owed and given == count
    return ahead


# promise: beat-order, transfer-rate
@pytest.mark.parametrize("ratio, answers", all_but([(1, 0.2), (2, 0.2), (8, 1)], (1, 2, 8), (1, 0.2)))
def test_random(ratio, answers):
    unit = ReadUnit(transfer=LAYOUT, bus_width=64, vector_width=64 * ratio)
    ahead = simulate(unit, traffic, seed=seed(), ratio=ratio, count=40, answers=answers)
    assert ahead == 9, "the oldest transfer, and eight that are requested while its data arrive"


def test_tiles_without_rows():
    unit = ReadUnit(transfer=TILES, bus_width=64, vector_width=64)
    simulate(unit, traffic, seed=seed(), layout=TILES, ratio=1, count=20, answers=0.7)


def test_transfers_with_training_fields():
    """Transfers with the additional fields of training, such as halves of biases, mark their vectors as the model does."""
    unit = ReadUnit(transfer=TRAINING, bus_width=64, vector_width=128)
    simulate(unit, traffic, seed=seed(), layout=TRAINING, ratio=2, count=40, answers=0.7)


def test_error():
    simulate(
        ReadUnit(transfer=LAYOUT, bus_width=64, vector_width=64),
        traffic,
        seed=seed(),
        ratio=1,
        count=10,
        answers=0.7,
        failing=True,
    )
