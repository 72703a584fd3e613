"""In which order an epoch goes through the samples, and which of them are held out: from a seed, the same on every machine.

Numbers come from numpy's Philox as raw bits, whose stream numpy guarantees; that of `Generator.permutation` it does not (NEP 19).
"""

import numpy as np

__all__ = ["epoch_order", "held_out"]

_ORDER, _HELD_OUT = 1, 2  # what random bits are for


def _permutation(count, *key):
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")


def epoch_order(seed, epoch, count):
    """int64 (count,): each number from 0 on once, in the order of an epoch (from 0)."""
    return _permutation(count, seed, _ORDER, epoch)


def held_out(seed, count, fraction):
    """`(training, validation)`: numbers of samples, each ascending; the second is this fraction of all, rounded."""
    order = _permutation(count, seed, _HELD_OUT)
    size = round(count * fraction)
    return np.sort(order[size:]), np.sort(order[:size])
