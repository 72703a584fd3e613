"""Random samples that stress a program: ordinary numbers, zeros of both signs, and numbers of all magnitudes."""

import numpy as np

from .samples import float_places, random_samples

__all__ = ["stress_samples"]

_SMALLEST = -140  # exponent of two; bfloat16 has no normal numbers below 2^-126


def stress_samples(network, count, seed, most):
    """Returns random samples, float32 (count, values of a sample), of four kinds in turn: normally distributed numbers; the
    same, with zeros of both signs in a third of the places; numbers down to 2^-140; numbers up to 2^`most`. Integers, and row
    numbers of tables, are drawn as :func:`.random_samples` draws them."""
    rows, random = random_samples(network, count, seed).rows.copy(), np.random.default_rng([seed, 1])
    places = float_places(network)
    for kind, change in enumerate((_with_zeros, _small, lambda values, random: _large(values, random, most)), 1):
        part = rows[kind::4]
        part[:, places] = change(part[:, places], random)
    return rows


def _with_zeros(values, random):
    signed = np.copysign(np.float32(0), values)
    return np.where(random.random(values.shape) < 1 / 3, signed, values)


def _small(values, random):
    return np.ldexp(values, random.integers(_SMALLEST, 1, values.shape)).astype(np.float32)


def _large(values, random, most):
    return np.ldexp(values, random.integers(0, most + 1, values.shape)).astype(np.float32)
