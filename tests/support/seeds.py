"""The seed of random stimulus: `TPU_SEED`, or a new one for every run of pytest; `--seeds N` continues with the next N - 1
seeds."""

import os
import random

__all__ = ["FIRST", "seed", "go_to", "drawn"]

#: Of the first round. Set for the processes that pytest-xdist starts, so that all have the same.
FIRST = int(os.environ.get("TPU_SEED") or random.SystemRandom().randrange(1, 1 << 31))
os.environ["TPU_SEED"] = str(FIRST)

_present, _drawn = FIRST, False


def seed():
    """The present seed; conftest.py shows it with a failure."""
    global _drawn
    _drawn = True
    return _present


def go_to(number):
    """Makes the seed the one of round `number`, counted from 0."""
    global _present, _drawn
    _present, _drawn = FIRST + number, False


def drawn():
    """The present seed if anyone asked for it since :func:`go_to`, else None."""
    return _present if _drawn else None
