"""The seed of random stimulus, which is `TPU_SEED` or a new one for each run of pytest. `--seeds N` repeats each test with N
seeds."""

import os
import random

__all__ = ["FIRST", "seed", "go_to", "drawn"]

#: Seed of the first round, in the environment so that all processes of pytest-xdist have the same.
FIRST = int(os.environ.get("TPU_SEED") or random.SystemRandom().randrange(1, 1 << 31))
os.environ["TPU_SEED"] = str(FIRST)

_present, _drawn = FIRST, False


def seed():
    """Returns the current seed as an integer; conftest.py prints it with a failure."""
    global _drawn
    _drawn = True
    return _present


def go_to(number):
    """Sets the seed of round `number`, counted from 0."""
    global _present, _drawn
    _present, _drawn = FIRST + number, False


def drawn():
    """Returns the current seed if :func:`seed` was called since :func:`go_to`. Otherwise returns None."""
    return _present if _drawn else None
