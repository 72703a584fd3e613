"""Sample order of each epoch and the validation split, from a seed, identical on every machine.

The random numbers are raw bits of numpy's Philox. numpy guarantees this stream, but not the stream of `Generator.permutation`
(NEP 19).
"""

import numpy as np

__all__ = ["epoch_order", "held_out"]

_ORDER, _HELD_OUT = 1, 2  # keys of the random streams


def _permutation(count, *key):
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    return np.argsort(bits, kind="stable")


def epoch_order(seed, epoch, count):
    """Returns the sample order of an epoch (from 0): a permutation of 0 to count - 1, int64 (count,)."""
    return _permutation(count, seed, _ORDER, epoch)


def held_out(seed, count, fraction):
    """Returns sample numbers `(training, validation)`, each ascending. The second has `fraction` of all samples, rounded."""
    order = _permutation(count, seed, _HELD_OUT)
    size = round(count * fraction)
    return np.sort(order[size:]), np.sort(order[:size])
