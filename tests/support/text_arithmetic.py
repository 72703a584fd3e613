"""TABLE, SOFTMAX and NORMALIZE in fractions, written from the datasheet's text alone."""

from fractions import Fraction
from math import floor, log2, sqrt

__all__ = ["NAN", "normalize_of_text", "softmax_of_text", "table_of_text"]

NAN = 0x7FC0
ONE = Fraction(1)


def power_of_two(exponent):
    return Fraction(2) ** exponent


def signed(bits, width):
    return bits - (bits >> width - 1 << width)


def nearest(value):
    """Rounds to an integer, ties away from 0."""
    return floor(abs(value) + ONE / 2) * (1 if value >= 0 else -1)


def bfloat16_of(sign, significand, exponent):
    """Returns the bits of `sign`, and `significand` times 2^(`exponent` - 134) rounded to 8 bits, ties away from 0."""
    while significand >= 256:
        significand, exponent = significand / 2, exponent + 1
    while significand < 128:
        significand, exponent = significand * 2, exponent - 1
    rounded = nearest(significand)
    if rounded == 256:
        rounded, exponent = 128, exponent + 1
    if exponent <= 0:
        return sign << 15
    return sign << 15 | (0x7F80 if exponent >= 255 else exponent << 7 | rounded - 128)


# --- TABLE ------------------------------------------------------------------------------------------------------


def nearest_binade(table, exponent):
    last = table.first + 15 - table.spare
    if table.first <= exponent <= last:
        return exponent
    odd = (exponent - table.first) % 2
    if table.scale in (1, 3):
        return table.first + odd if exponent < table.first else last - (not odd)
    return table.first if exponent < table.first else last


def table_of_text(table, x):
    """Returns TABLE of the binary32 bits `x`."""
    sign, exponent, fraction = x >> 31, x >> 23 & 255, x >> 16 & 127
    if exponent == 255 and x & 0x7FFFFF:
        return NAN
    e, last = nearest_binade(table, exponent), table.first + 15 - table.spare
    index = sign << 11 | (table.base + e - table.first) % 16 << 7 | fraction
    value, slope = (int(word) for word in table.words[2 * index : 2 * index + 2])
    t, increase, end = Fraction(x >> 4 & 0xFFF, 4096), 0, None
    if exponent < table.first or exponent > last:
        bits = table.linear_low if exponent < table.first else table.linear_high
        if bits >> sign & 1:
            step = exponent - e
            increase = (step, step // 2, -step, -(step // 2))[table.scale]
            if exponent == 0:
                end = ("zero", "zero", "infinity", "infinity")[table.scale]
            elif exponent == 255:
                end = (None, "infinity", "zero", "zero")[table.scale]
            t = Fraction(0) if end else t
        else:
            t = Fraction(0)
    if value >> 7 & 255 == 255 and value & 127 and not (end and exponent == 0):
        return NAN
    g, r = Fraction(signed(slope & 0xFFF, 12), 8), Fraction(signed(slope >> 12, 4), 16)
    significand = 128 + (value & 127) + r + Fraction(floor(64 * g * t), 64)
    if value >> 7 & 255 == 0 or significand < 32 or end == "zero":
        return value & 0x8000
    if end == "infinity":
        return value & 0x8000 | 0x7F80
    return bfloat16_of(value >> 15, significand, (value >> 7 & 255) + increase)


# --- SOFTMAX ----------------------------------------------------------------------------------------------------


def value_of(bits):
    """Returns the value of binary32 bits, with subnormals as 0, and infinities as 2^128."""
    if not bits & 0x7F800000:
        return Fraction(0)
    return (-1) ** (bits >> 31) * (1 + Fraction(bits & 0x7FFFFF, 1 << 23)) * power_of_two((bits >> 23 & 255) - 127)


def table_entries(value):
    return [min(65535, round(value(i))) for i in range(16)]


A, B = table_entries(lambda i: 2 ** (16 - i / 16)), table_entries(lambda i: 2 ** (16 - i / 256))
C = table_entries(lambda i: 2 ** (16 - 7.5 / 256) * (1 - 2 ** (-i / 4096)))


def softmax_of_text(row):
    values = [value_of(x) for x in row]
    m = max(values)
    if any(x & 0x7FFFFFFF > 0x7F800000 for x in row) or abs(m) == power_of_two(128):
        return [NAN] * len(row)
    place = power_of_two(-12)
    if m:
        a = floor(log2(abs(m)))
        a += (abs(m) >= power_of_two(a + 1)) - (abs(m) < power_of_two(a))
        place = max(place, power_of_two(a - 24))
    powers = []
    for x in values:
        distance = (nearest(m / place) - nearest(x / place)) * place
        units = min((1 << 19) - 1, distance * 4096)
        u = nearest(units * Fraction(189_097, 1 << 17))
        k, a, b, c = u >> 12, u >> 8 & 15, u >> 4 & 15, u & 15
        powers.append((A[a] * (B[b] - C[c]) >> 16, k))
    total = sum(floor(Fraction(p, 1 << 16) * power_of_two(32 - k)) for p, k in powers if k < 32) >> 16
    z = total.bit_length()
    reciprocal = ((1 << 15 + z) - 1) // total
    return [bfloat16_of(0, Fraction(p * reciprocal), 134 - 15 - z - k) for p, k in powers]


# --- NORMALIZE --------------------------------------------------------------------------------------------------


def octave(value):
    """Returns the exponent of the largest power of two up to a positive fraction."""
    a = value.numerator.bit_length() - value.denominator.bit_length()
    return a - (value < power_of_two(a))


def truncated(value, bits):
    """Truncates a fraction to this number of significant bits."""
    place = power_of_two(octave(value) - bits + 1) if value else ONE
    return floor(value / place) * place


def constant(bits):
    return (1 + Fraction(bits & 0xFFFF, 1 << 16)) * power_of_two((bits >> 16) - 127)


def root_of_text(total):
    exponent = octave(total)
    v, b = (total / power_of_two(exponent) - 1) * (1 << 17), exponent % 2
    i, u = 32 * b + floor(v / 4096), v % 4096

    def f(index, upper):
        s = 2 * (1 + (index - 32) / 32) if upper else 1 + index / 32
        return 2**18 / sqrt(s)

    first, last, middle = (f(i + step, b) for step in (0, 1, 0.5))
    c = ((first + last) / 2 - middle) / 2
    return (round(first - c) - floor(round(first - last) * u / 4096)) * power_of_two(-18 - (exponent - b) // 2)


def normalize_of_text(row, centred, factor, epsilon, root=0):
    values = [value_of(x) for x in row]
    if any(x & 0x7FFFFFFF >= 0x7F800000 for x in row):
        return [NAN] * len(row)
    largest = max(map(abs, values))
    place = power_of_two(octave(largest) - 24) if largest else ONE
    numbers = [nearest(x / place) for x in values]
    mean = floor(Fraction(sum(numbers), len(numbers))) if centred else 0
    differences = [x - mean for x in numbers]
    k = [floor(Fraction(abs(d) - (d < 0), 1024)) for d in differences]
    squares = truncated(sum(one * (one + 1) for one in k) * (1024 * place) ** 2, 18)
    e = constant(epsilon) if epsilon >> 16 else Fraction(0)
    large, small = max(squares, e), min(squares, e)
    if not large:
        return [NAN] * len(row)
    last = power_of_two(octave(large) - 17)
    scale = truncated(root_of_text(truncated(large + floor(small / last) * last, 18)) * constant(factor), 16)
    if root:
        return [bfloat16_of(0, scale * power_of_two(134), 0)] * len(row)
    results = [truncated(Fraction(abs(d)), 16) * scale * place for d in differences]
    return [bfloat16_of(int(d < 0), y * power_of_two(134), 0) if y else 0 for d, y in zip(differences, results)]
