# amaranth: UnusedElaboratable=no
"""Tests of the adder against the golden model, covering all pairs of special values, ties, cancellation, random pairs, and the
vectors of TestFloat."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from amaranth_tpu.hw.arithmetic.adder import LATENCIES, Adder
from amaranth_tpu.scripts import testfloat
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.rtl.number_classes import one_of_each
from amaranth_tpu.sim.rtl.streams import SideBySide, StreamedBlock, simulate_columns
from seeds import seed
from suites import all_but


def is_nan(bits):
    return bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)


def adders(latencies, canonical_b=False):
    return SideBySide({latency: Adder(latency=latency, canonical_b=canonical_b) for latency in latencies})


def check(run, a, b, latencies):
    """Streams the pairs through `run(a=, b=)` and compares every output with the golden model."""
    last = np.zeros(max(latencies), dtype=np.uint32)
    outputs = run(a=np.concatenate([a, last]), b=np.concatenate([b, last]))
    expected = golden.add(a, b)
    for latency in latencies:
        found = outputs[f"o_{latency}"][latency : latency + len(a)]
        wrong = np.flatnonzero(found != expected)
        assert not len(wrong), (
            f"latency {latency}: {len(wrong)} of {len(a)} wrong, first {a[wrong[0]]:08x} + {b[wrong[0]]:08x} = "
            f"{found[wrong[0]]:08x}, not {expected[wrong[0]]:08x}"
        )


def pairs(values):
    values = np.array(values, dtype=np.uint32)
    return np.repeat(values, len(values)), np.tile(values, len(values))


def random_pairs(rng, count):
    """Returns `count` random pairs of binary32 bits. They include close exponents, ties, cancellation, values at the ends of the
    range, products of 16 significant bits, and arbitrary bits."""
    a, b = rng.integers(0, 1 << 32, (2, count), dtype=np.uint32)
    exponent = np.choose(
        rng.integers(0, 3, count), [rng.integers(0, 256, count), rng.integers(0, 30, count), rng.integers(240, 256, count)]
    )
    distance = np.choose(rng.integers(0, 2, count), [rng.integers(-30, 31, count), rng.integers(-2, 3, count)])
    a = a & np.uint32(0x807FFFFF) | exponent.astype(np.uint32) << np.uint32(23)
    near = np.clip(exponent + distance, 0, 255).astype(np.uint32)
    near = b & np.uint32(0x807FFFFF) | near << np.uint32(23)
    # few significant bits: the bits shifted out are a tie, or zeros
    sparse = near & np.left_shift(np.uint32(0xFFFFFFFF), rng.integers(0, 24, count, dtype=np.uint32))
    equal = (a ^ np.uint32(1 << 31)) + rng.integers(-2, 3, count).astype(np.uint32)
    single = near & np.uint32(0xFF800000) | np.left_shift(np.uint32(1), rng.integers(0, 24, count, dtype=np.uint32))
    b = np.choose(rng.integers(0, 6, count), [near, sparse, equal, single, near & np.uint32(0xFFFFFF00), b])
    exchange = rng.integers(0, 2, count) == 0
    return np.where(exchange, a, b), np.where(exchange, b, a)


def canonical(b):
    return np.where(is_nan(b), np.uint32(golden.NAN), b)


def test_hand_computed_sums():
    """Compares adder and golden model with hand-computed sums, so that an error in both is found too."""
    table = [
        # a           b           a + b
        (0x3F800000, 0x33800000, 0x3F800000),  # a tie, to even: down
        (0x3F800001, 0x33800000, 0x3F800002),  # a tie, to even: up
        (0x3F800000, 0x33800001, 0x3F800001),  # just above a tie
        (0x3F800000, 0xB3000000, 0x3F800000),  # 1 - 2^-25: a tie below 1, to even
        (0x3F800000, 0xB3000001, 0x3F7FFFFF),
        (0x3F7FFFFF, 0x33000000, 0x3F800000),  # rounding carries into the exponent
        (0x3F800000, 0xBF7FFFFF, 0x33800000),  # cancellation
        (0x3F800000, 0xBF800000, 0x00000000),
        (0x80000000, 0x80000000, 0x80000000),
        (0x80000000, 0x00000000, 0x00000000),
        (0x7F7FFFFF, 0x73000000, 0x7F800000),  # rounds up to infinity
        (0x7F7FFFFF, 0x72FFFFFF, 0x7F7FFFFF),
        (0x7F000000, 0x7F000000, 0x7F800000),
        (0x7F800000, 0xFF800000, 0x7FC00000),
        (0xFF800000, 0xFF7FFFFF, 0xFF800000),
        (0xFF800001, 0x3F800000, 0x7FC00000),
        (0x00800000, 0x007FFFFF, 0x00800000),  # a subnormal operand is zero
        (0x00800001, 0x80800000, 0x00000000),  # a subnormal result is zero,
        (0x80800001, 0x00800000, 0x80000000),  # of its sign
        (0x00FFFFFF, 0x80000001, 0x00FFFFFF),
        (0x80000001, 0x80000001, 0x80000000),
    ]
    a, b, expected = np.array(table, dtype=np.uint32).T
    found = simulate_columns(adders([1]), a=np.append(a, 0), b=np.append(b, 0))["o_1"][1:]
    assert [f"{value:08x}" for value in found] == [f"{value:08x}" for value in expected]


@pytest.mark.parametrize("latency", [1, 6])
def test_specials(latency):
    a, b = pairs(one_of_each(np.random.default_rng(seed()), count=3))
    check(lambda **columns: simulate_columns(adders([latency]), **columns), a, b, [latency])


def test_specials_canonical_b():
    a, b = pairs(one_of_each(np.random.default_rng(seed()), count=2))
    check(lambda **columns: simulate_columns(adders([2], canonical_b=True), **columns), a, canonical(b), [2])


@pytest.mark.parametrize("latency", all_but([2, 6], LATENCIES))
def test_random(latency):
    a, b = random_pairs(np.random.default_rng([seed(), latency]), 1200)
    check(lambda **columns: simulate_columns(adders([latency]), **columns), a, b, [latency])


@pytest.mark.parametrize("latency", [0, 7, 1.5, None])
def test_rejects(latency):
    with pytest.raises(ValueError, match=f"not {latency!r}"):
        Adder(latency=latency)


# ---- TestFloat's reader


@pytest.mark.parametrize(
    "text, message",
    [
        (b"", "no vectors"),
        (b"3f800000 3f800000\n", "after line 0"),
        (b"3f800000 3f800000 40000000 00\n3f800000 3f80000g 40000000 00\n", "after line 0"),
        (b"3f800000 3f800000 40000000 00\n3f800000 3f8\n", "after line 0"),
    ],
)
def test_reader_rejects(tmp_path, text, message):
    path = tmp_path / "f32_add.txt"
    path.write_bytes(text)
    with pytest.raises(testfloat.VectorError, match=message):
        list(testfloat.read_vectors(path))


def test_reader(tmp_path):
    text = b"3F800000 bf800000 00000000 00\n7F7FFFFF 7f7fffff 7f800000 05\n"
    for name, written in (("plain", text), ("no_last_newline", text[:-1]), ("packed.gz", gzip.compress(text))):
        path = tmp_path / name
        path.write_bytes(written)
        (vectors,) = testfloat.read_vectors(path)
        assert [list(map(hex, column)) for column in vectors] == [
            ["0x3f800000", "0x7f7fffff"],
            ["0xbf800000", "0x7f7fffff"],
            ["0x0", "0x7f800000"],
        ]


def test_reader_notices_a_cut_file(tmp_path):
    path = tmp_path / "f32_add.gz"
    path.write_bytes(gzip.compress(b"3F800000 bf800000 00000000 00\n" * 999)[:-9])
    with pytest.raises(testfloat.VectorError, match="damaged"):
        list(testfloat.read_vectors(path))


# ---- large random tests, compiled


@pytest.mark.slow
@pytest.mark.parametrize("canonical_b", [False, True])
def test_volume(canonical_b):
    block = StreamedBlock(adders(LATENCIES, canonical_b))
    for part in range(4):
        a, b = random_pairs(np.random.default_rng([seed(), part]), 1_000_000)
        check(block.run, a, canonical(b) if canonical_b else b, LATENCIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["f32_add_level1.gz", "f32_mul_level1.gz"])
def test_testfloat(name):
    folder = os.environ.get("TPU_TESTFLOAT")
    if not folder:
        pytest.skip("set TPU_TESTFLOAT to the folder of Berkeley TestFloat's vectors")
    result = testfloat.check_file(Path(folder) / name)
    assert result.failed == 0 and result.passed + result.skipped == 46464, result


@pytest.mark.slow
def test_testfloat_script(tmp_path):
    """The TestFloat script exits with 0 only if the file has at least one vector and every vector matches."""
    path = tmp_path / "f32_add.txt"
    command = testfloat.typer.Typer()
    command.command()(testfloat.main)
    for text, status, words in (
        (b"3F800000 3f800000 40000000 00\n", 0, "1 passed, 0 failed"),
        (b"3F800000 3f800000 40000001 00\n", 1, "0 passed, 1 failed"),
        (b"nonsense\n", 2, "f32_add.txt"),
    ):
        path.write_bytes(text)
        result = CliRunner().invoke(command, [str(path)])
        assert result.exit_code == status and words in result.output
