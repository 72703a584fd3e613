"""The order of samples in each epoch, and the validation split. Both follow from a seed, and are equal on every computer.

The random numbers are raw bits of numpy's Philox generator. numpy guarantees that this sequence never changes, but does not
guarantee the results of `Generator.permutation` (NEP 19).
"""

import numpy as np

__all__ = ["epoch_order", "held_out"]

_ORDER, _HELD_OUT = 1, 2  # keys that separate the random sequences


def _permutation(count, *key):
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")


def epoch_order(seed, epoch, count):
    """Returns the order of the samples in an epoch, counted from 0: a permutation of 0 to count - 1, int64 (count,)."""
    return _permutation(count, seed, _ORDER, epoch)


def held_out(seed, count, fraction):
    """Returns the sample numbers of the training set and of the validation set, each ascending. The validation set has `fraction`
    of all samples, rounded."""
    order = _permutation(count, seed, _HELD_OUT)
    size = round(count * fraction)
    return np.sort(order[size:]), np.sort(order[:size])
