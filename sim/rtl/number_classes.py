"""The one generator of random numbers for tests of arithmetic. It draws numbers of all classes that an operation may treat
differently."""

import random

import numpy as np

__all__ = ["CLASSES", "numbers", "one_of_each"]

#: Exponents at which units shift by a whole word, or leave the range of a distance, an exponential, or a normal number.
CORNERS = (-126, -64, -63, -32, -24, -16, -1, 0, 1, 12, 13, 16, 23, 24, 32, 44, 45, 64, 127)
#: Classes of numbers. A near-tie is next to a tie of the rounding to bfloat16, or on it; often only the carry of this rounding
#: changes its exponent.
CLASSES = ("zero", "subnormal", "least", "largest", "infinity", "nan", "power", "corner", "tie", "any")


def numbers(rng, shape=(), share=0.3, bits=32, classes=CLASSES):
    """Returns the bits of random numbers, an array of uint32 of this shape.

    Parameters
    ----------
    rng : numpy.random.Generator or random.Random
    share : float
        Fraction of numbers that are drawn from `classes`, each as often as the others. The rest is within a few powers of two
        of 1.
    bits : {32, 16}
        32: binary32. 16: bfloat16.
    classes : sequence of str
        Some of :data:`CLASSES`.
    """
    rng = np.random.default_rng(rng.getrandbits(64)) if isinstance(rng, random.Random) else rng
    kinds = np.where(rng.random(shape) < share, rng.choice(list(classes), shape), "ordinary")
    return drawn(rng, kinds, bits)


def one_of_each(rng, bits=32, count=4):
    """Returns the bits of `count` random numbers of each class."""
    return drawn(rng, np.repeat(CLASSES, count), bits)


def drawn(rng, kinds, bits):
    """Returns the bits of random numbers of the classes `kinds`."""
    places = bits - 9  # of the fraction
    shape, one = np.shape(kinds), np.int64(1) << places
    ends = np.array([0, 1, one >> 1, (one >> 1) - 1, one - 2, one - 1])
    fraction = np.where(rng.random(shape) < 0.5, rng.choice(ends, shape), rng.integers(0, one, shape))
    near, sign = rng.integers(-1, 2, shape), rng.integers(0, 2, shape) << bits - 1
    upper = np.where(rng.random(shape) < 0.3, 127, rng.integers(0, 128, shape)) << 16
    exponents = rng.integers(1, 255, shape)
    magnitudes = {
        "ordinary": rng.integers(123, 131, shape) << places | rng.integers(0, one, shape),
        "zero": 0,
        "subnormal": np.maximum(fraction, 1),
        "least": one | fraction,
        "largest": 254 << places | fraction,
        "infinity": 255 << places,
        "nan": 255 << places | np.maximum(fraction, 1),
        "power": (exponents << places) + near,
        "corner": 127 + rng.choice(CORNERS, shape) << places | fraction,
        "tie": (exponents << places) + (upper + 0x8000 + near if bits == 32 else fraction),
        "any": rng.integers(0, 1 << bits - 1, shape),
    }
    found = np.select([kinds == name for name in magnitudes], [np.broadcast_to(one, shape) for one in magnitudes.values()])
    return (found | sign).astype(np.uint32)
