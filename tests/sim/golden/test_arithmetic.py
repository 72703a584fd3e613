"""Tests of the golden model's arithmetic against Python's integers and fractions, which share no code with numpy's float32."""

import random
from fractions import Fraction

import numpy as np
import pytest

from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.golden.arithmetic import NAN, bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.ir.graph import dense_chain
from seeds import seed

ONE, TWO, INF, MINUS = 0x3F800000, 0x40000000, 0x7F800000, 0x80000000


@pytest.fixture
def integers():
    return random.Random(seed())


# ---- independent definition, on integers


def unpack(bits):
    """Returns (value, sign) of binary32 bits after flushing subnormals; the value is "nan", "inf" or an exact Fraction."""
    sign, exponent, fraction = bits >> 31, bits >> 23 & 255, bits & 0x7FFFFF
    if exponent == 255:
        return ("nan" if fraction else "inf"), sign
    if exponent == 0:
        return Fraction(0), sign
    value = Fraction(1 << 23 | fraction) * Fraction(2) ** (exponent - 150)
    return -value if sign else value, sign


def pack(value, sign, fraction_bits=23):
    """Rounds a Fraction to the nearest number of `fraction_bits + 9` bits, ties to even, and flushes subnormals. `sign` is the
    sign of a zero result."""
    infinite, places = 255 << fraction_bits, fraction_bits + 8
    if value == 0:
        return sign << places
    sign, value = int(value < 0), abs(value)
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - fraction_bits)
    whole, rest = divmod(value, unit)
    if rest * 2 > unit or rest * 2 == unit and whole % 2:
        whole += 1
    value = whole * unit
    if value < Fraction(2) ** -126:
        return sign << places
    if value >= Fraction(2) ** 128:
        return sign << places | infinite
    exponent = max(exponent, -126)
    if whole == 2 << fraction_bits:
        whole, exponent = whole // 2, exponent + 1
    return sign << places | exponent + 127 << fraction_bits | whole & (1 << fraction_bits) - 1


def exact_multiply(x, w):
    (a, sign_a), (b, sign_b) = unpack(x << 16), unpack(w << 16)
    sign = sign_a ^ sign_b
    if "nan" in (a, b) or "inf" in (a, b) and 0 in (a, b):
        return NAN
    return sign << 31 | INF if "inf" in (a, b) else pack(a * b, sign)


def exact_add(x, y):
    (a, sign_a), (b, sign_b) = unpack(x), unpack(y)
    if "nan" in (a, b) or a == b == "inf" and sign_a != sign_b:
        return NAN
    if "inf" in (a, b):
        return (sign_a if a == "inf" else sign_b) << 31 | INF
    return pack(a + b, sign_a & sign_b)


def exact_bfloat16(bits):
    value, sign = unpack(bits)
    if value == "nan":
        return 0x7FC0
    return sign << 15 | 0x7F80 if value == "inf" else pack(value, sign, 7)


def draw(rng, width, near=None):
    """Returns a random pattern of `width` bits that is often special, has long carries, or has an exponent near that of
    `near`."""
    exponent = rng.choice([0, 0, 1, 2, 126, 127, 128, 253, 254, 255, rng.randrange(256)])
    if near is not None and rng.random() < 0.7:
        exponent = min(255, max(0, (near >> width - 9 & 255) + rng.randrange(-26, 27)))
    bits = width - 9
    special = [0, 1, (1 << bits) - 1, (1 << bits) - 2, 1 << bits - 1]
    some = [rng.randrange(1 << bits) for _ in range(4)]
    fraction = rng.choice([*special, *some[:2], some[2] & some[3]])
    return rng.randrange(2) << width - 1 | exponent << bits | fraction


# ---- hand-computed results


@pytest.mark.parametrize(
    "x, w, product",
    [
        (0x3F80, 0x3F80, ONE),
        (0x3FC0, 0xBFC0, 0xC0100000),  # 1.5 * -1.5 = -2.25
        (0x3FFF, 0x3FFF, 0x407E0100),  # 1.9921875 squared, exactly
        (0x0000, 0x8000, MINUS),  # zeros: the signs' xor
        (0x8000, 0x8000, 0x00000000),
        (0x7F80, 0x0000, NAN),
        (0x8000, 0xFF80, NAN),
        (0x7F80, 0xBF80, 0xFF800000),  # inf * -1
        (0xFF80, 0xFF80, INF),
        (0x7FC0, 0x0000, NAN),
        (0xFF81, 0x3F80, NAN),
        (0x3F80, 0x7FFF, NAN),
        (0x7F7F, 0x7F7F, INF),
        (0x7F7F, 0xC000, 0xFF800000),  # overflow
        (0x0080, 0x3F00, 0x00000000),  # 2^-126 / 2 is subnormal
        (0x8080, 0x3F00, MINUS),
        (0x0080, 0x3F80, 0x00800000),  # the least normal number stays
        (0x0100, 0x3F00, 0x00800000),
        (0x00FF, 0x3F7F, 0x00FE0100),  # 255/128 * 255/256 = 65025/32768 of 2^-126, exactly
        (0x007F, 0x7F00, 0x00000000),  # subnormal operand, large one: still zero
        (0x807F, 0x7F00, MINUS),
        (0x007F, 0x7F80, NAN),  # flushed to 0, times inf
        (0x2000, 0x1F80, 0x00000000),  # 2^-63 * 2^-64 = 2^-127: below
        (0x2000, 0x2000, 0x00800000),  # 2^-63 * 2^-63 = 2^-126: just not
    ],
)
def test_multiply_directed(x, w, product):
    assert golden.multiply(x, w) == golden.multiply(w, x) == product


@pytest.mark.parametrize(
    "a, b, total",
    [
        (ONE, ONE, TWO),
        (ONE, 0x33800000, ONE),  # 1 + 2^-24: a tie, to even: down
        (0x3F800001, 0x33800000, 0x3F800002),  # odd + half: a tie, to even: up
        (ONE, 0x33800001, 0x3F800001),  # a little over the tie
        (ONE, 0xB3000000, ONE),  # 1 - 2^-25: a tie below a power of two, to even
        (ONE, 0xB3000001, 0x3F7FFFFF),
        (ONE, 0xB3800000, 0x3F7FFFFF),  # 1 - 2^-24, exact
        (ONE, 0x00800000, ONE),  # far away: only sticky
        (0x3FFFFFFF, 0x33800000, TWO),  # the carry runs through all bits
        (ONE, 0xBF800000, 0x00000000),  # x - x = +0
        (0x00000000, MINUS, 0x00000000),
        (MINUS, MINUS, MINUS),
        (0x00800001, 0x80800000, 0x00000000),  # cancels to a subnormal: flushed,
        (0x00800000, 0x80800001, MINUS),  # with its sign
        (0x00000001, 0x00000001, 0x00000000),  # subnormal operands
        (0x007FFFFF, 0x00800000, 0x00800000),
        (0x807FFFFF, MINUS, MINUS),
        (0x80000001, 0x00000000, 0x00000000),
        (0x7F7FFFFF, 0x73000000, INF),  # largest + half an ulp: a tie, to even: infinite
        (0x7F7FFFFF, 0x72FFFFFF, 0x7F7FFFFF),
        (0xFF7FFFFF, 0xFF7FFFFF, 0xFF800000),
        (INF, 0xFF800000, NAN),
        (INF, INF, INF),
        (INF, 0xFF7FFFFF, INF),
        (0x7F800001, ONE, NAN),
        (0xFFC00000, 0x7FC00000, NAN),
        (ONE, 0xFFFFFFFF, NAN),
    ],
)
def test_add_directed(a, b, total):
    assert golden.add(a, b) == golden.add(b, a) == total


@pytest.mark.parametrize(
    "value, rounded",
    [
        (ONE, 0x3F80),
        (0x3F808000, 0x3F80),
        (0x3F818000, 0x3F82),
        (0x3F808001, 0x3F81),
        (0x3F807FFF, 0x3F80),
        (0x3FFF8000, 0x4000),  # carry into the exponent
        (0x7F7F8000, 0x7F80),
        (0x7F7F7FFF, 0x7F7F),
        (0xFF7FFFFF, 0xFF80),
        (INF, 0x7F80),
        (0xFF800000, 0xFF80),
        (0x7F800001, 0x7FC0),
        (0xFFFFFFFF, 0x7FC0),
        (0xFFC00000, 0x7FC0),
        (MINUS, 0x8000),
        (0x00000001, 0x0000),
        (0x807FFFFF, 0x8000),
        (0x007FFFFF, 0x0000),
        (0x00800000, 0x0080),
        (0x00808000, 0x0080),
    ],
)
def test_to_bfloat16_directed(value, rounded):
    assert golden.to_bfloat16(value) == rounded == exact_bfloat16(value)


@pytest.mark.parametrize(
    "value, result",
    [
        (ONE, ONE),
        (0xBF800000, 0),
        (MINUS, 0),
        (0, 0),
        (INF, INF),
        (0xFF800000, 0),
        (0x7F800001, NAN),
        (0xFFC00000, NAN),
        (0xFFFFFFFF, NAN),
        (0x00800000, 0x00800000),
        (0x80800000, 0),
    ],
)
def test_relu_directed(value, result):
    assert golden.relu(value) == result


def test_multiply_accumulate_rounds_twice():
    # The product overflows before a sum of the other sign could bring it back; a fused cell would give 2^127.
    assert golden.multiply_accumulate(0xFF000000, 0x7F00, 0x4000) == INF
    # 2^-127 is flushed before it is added, though 2^-126 + 2^-127 would be normal.
    assert golden.multiply_accumulate(0x00800000, 0x0080, 0x3F00) == 0x00800000


# ---- random operands, against the independent definition


def test_multiply_random(integers):
    pairs = [
        (x := draw(integers, 16), draw(integers, 16, near=0x3F80 * 2 - x & 0x7FFF if integers.random() < 0.5 else None))
        for _ in range(10_000)
    ]
    x, w = np.array(pairs).T
    wanted = [exact_multiply(*pair) for pair in pairs]
    assert [hex(v) for v in golden.multiply(x, w)] == [hex(v) for v in wanted]
    assert 0x00800000 <= min(v & 0x7FFFFFFF for v in wanted if v & 0x7FFFFFFF) < 0x02000000  # reaches the edge


def test_add_random(integers):
    pairs = [(a := draw(integers, 32), draw(integers, 32, near=a)) for _ in range(10_000)]
    a, b = np.array(pairs).T
    wanted = [exact_add(*pair) for pair in pairs]
    assert [hex(v) for v in golden.add(a, b)] == [hex(v) for v in wanted]
    assert len({v for v in wanted if v != NAN}) > 5_000


def test_to_bfloat16_random(integers):
    values = [draw(integers, 32) for _ in range(6_000)] + [integers.getrandbits(16) << 16 | 0x8000 for _ in range(2_000)]
    assert list(golden.to_bfloat16(np.array(values))) == [exact_bfloat16(v) for v in values]


def test_every_bfloat16_survives():
    every = np.arange(1 << 16, dtype=np.uint32)
    value = every & 0x7FFF
    wanted = np.where(value > 0x7F80, 0x7FC0, np.where(value < 0x80, every & 0x8000, every))
    assert (golden.to_bfloat16(every << 16) == wanted).all()


# ---- matrices


def random_patterns(integers, shape, width, wild):
    return np.array(
        [
            draw(integers, width)
            if integers.random() < wild
            else golden.to_bfloat16(np.float32(integers.gauss(0, 1)).view(np.uint32)) << (width - 16)
            for _ in range(int(np.prod(shape)))
        ]
    ).reshape(shape)


@pytest.mark.parametrize("batch, inner, width", [(1, 1, 1), (3, 17, 5), (5, 9, 3), (2, 12, 31), (1, 40, 2), (37, 6, 1)])
@pytest.mark.parametrize("wild", [0, 0.02, 0.3])
def test_matmul_is_the_chain_of_cells(integers, batch, inner, width, wild):
    x, w = random_patterns(integers, (batch, inner), 16, wild), random_patterns(integers, (inner, width), 16, wild)
    bias = random_patterns(integers, (width,), 32, wild)
    result = golden.matmul(
        x.astype(np.uint16).view(bfloat16), w.astype(np.uint16).view(bfloat16), bias.astype(np.uint32).view(np.float32)
    )
    for b in range(batch):
        for n in range(width):
            acc = int(bias[n])
            for k in range(inner):
                acc = exact_add(acc, exact_multiply(int(x[b, k]), int(w[k, n])))
            assert hex(result.view(np.uint32)[b, n]) == hex(acc)


def test_matmul_flushes_at_the_edge(integers):
    """A matrix product of finite operands equals cell-by-cell accumulation, where products and sums are subnormal and flushed."""
    x = np.array(
        [[draw(integers, 16) & 0x807F | integers.randrange(0x1F00, 0x2180) & 0x7F80 for _ in range(30)] for _ in range(8)]
    )
    w = np.array(
        [[draw(integers, 16) & 0x807F | integers.randrange(0x1F00, 0x2180) & 0x7F80 for _ in range(4)] for _ in range(30)]
    )
    acc = np.zeros((8, 4), np.uint32)
    for k in range(30):
        acc = golden.multiply_accumulate(acc, x[:, k, None], w[None, k])
    result = golden.matmul(x.astype(np.uint16).view(bfloat16), w.astype(np.uint16).view(bfloat16))
    assert (result.view(np.uint32) == acc).all()
    assert (acc & 0x7FFFFFFF != 0).any()


@pytest.mark.parametrize("exponent, total", [(-112, 2.0**-126), (-113, 0), (-120, 0)])
def test_matmul_cancels_to_the_edge(exponent, total):
    """Products that cancel to 2^-14 at some scale sum to the least normal number, or to 0 if the sum is subnormal."""
    x = np.array([[1 + 2**-7, 1 + 2**-6]]).astype(bfloat16)
    w = (np.array([[1 + 2**-7], [-1]]) * 2.0**exponent).astype(bfloat16)
    assert golden.matmul(x, w) == total
    scale = np.array(2.0 ** (exponent // 2)).astype(bfloat16)
    assert golden.matmul(x * scale, (w.astype(float) / float(scale)).astype(bfloat16)) == total


def test_matmul_order_and_blocks(rng):
    """A matrix product depends on the order of its sums. Splitting K with the sums passed on, or splitting the batch, does not
    change it."""
    x = golden.round_bfloat16(rng.normal(size=(2_100, 50)))
    w = golden.round_bfloat16(rng.normal(size=(50, 40)))
    whole = golden.matmul(x, w)
    assert (golden.matmul(x[:, 13:], w[13:], golden.matmul(x[:, :13], w[:13])).view(np.uint32) == whole.view(np.uint32)).all()
    assert (golden.matmul(x[2_050:2_060], w) == whole[2_050:2_060]).all()
    assert (golden.matmul(x[:, ::-1], w[::-1]) != whole).any()
    assert np.allclose(whole, x.astype(np.float64) @ w.astype(np.float64), atol=1e-3)


@pytest.mark.parametrize("edge", [False, True])
def test_matmuls(integers, edge):
    """Grouped matrix products equal the products of each group bit for bit, also where subnormal products and sums are
    flushed."""

    def patterns(*shape):
        bits = random_patterns(integers, shape, 16, 0.05)
        bits = (
            bits & 0x807F | np.array([integers.randrange(0x1F00, 0x2180) & 0x7F80 for _ in range(bits.size)]).reshape(shape)
            if edge
            else bits
        )
        return bits.astype(np.uint16).view(bfloat16)

    x, w = patterns(7, 3, 5, 2), patterns(3, 2, 5, 4)
    start = np.zeros((7, 5, 4), np.uint32) if edge else random_patterns(integers, (7, 5, 4), 32, 0.05).astype(np.uint32)
    start = start.view(np.float32)
    result = golden.matmuls(x, w, start)
    for g in range(5):
        one = golden.matmul(x[:, :, g].reshape(7, 6), w[:, :, g].reshape(6, 4), np.ascontiguousarray(start[:, g]))
        assert (one.view(np.uint32) == result[:, g].view(np.uint32)).all()


def test_matmul_zero_signs():
    zero, minus = np.zeros((1, 1), bfloat16), -np.ones((1, 1), bfloat16)
    assert golden.matmul(zero, minus).view(np.uint32) == 0  # +0 + -0
    assert golden.matmul(zero, minus, np.array([-0.0], np.float32)).view(np.uint32) == MINUS
    assert golden.matmul(zero, zero, np.array([-1e-40], np.float32)).view(np.uint32) == 0  # bias flushed, then -0 + +0


def test_matmul_refuses():
    ones = np.ones((2, 3), bfloat16)
    with pytest.raises(ValueError, match="do not multiply"):
        golden.matmul(ones, ones)
    with pytest.raises(TypeError, match="float32"):
        golden.matmul(ones.astype(np.float32), ones.T)
    with pytest.raises(ValueError, match="bias"):
        golden.matmul(ones, ones.T, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="tanh"):
        golden.activate(np.zeros((1, 1), np.float32), "tanh")


def test_run_network():
    def layer(weights, bias, function):
        return "", np.array(weights, bfloat16), bias, function

    first = layer([[1, 1], [2**-9, -1]], np.array([0, -5], np.float32), "relu")
    last = layer([[3], [7]], None, "none")
    network = dense_chain("two", (first, last))
    # First layer: 1 + 2^-9 rounds to 1 between the layers; 1 - 1 - 5 is cut by the ReLU.
    assert run_network(network, np.array([[1, 1]], np.float32)) == 3
    # A last layer keeps binary32, and the input is rounded.
    network = dense_chain("one", (first,))
    result = run_network(network, np.array([[1 + 2**-9, 1]], np.float32))
    assert result.dtype == np.float32 and result.tolist() == [[1 + 2**-9, 0]]


def test_matmul_leaves_its_arguments_alone():
    x, w, bias = np.ones((1, 2), bfloat16), np.ones((2, 1), bfloat16), np.array([1e-40], np.float32)
    golden.matmul(x, w, bias)
    assert bias[0] == np.float32(1e-40) and x.tolist() == [[1, 1]]
