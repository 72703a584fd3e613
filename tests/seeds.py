"""The seed of random stimulus: `TPU_SEED` if it is set, else drawn anew for every run of pytest; `--seeds N` goes on from there."""

import os
import random
import sys

__all__ = ["FIRST", "seed", "go_to", "was_drawn"]

#: Of the first round. Set for the processes that pytest-xdist starts, so that all have the same.
FIRST = int(os.environ.get("TPU_SEED") or random.SystemRandom().randrange(1, 1 << 31))
os.environ["TPU_SEED"] = str(FIRST)

_present, _drawn = FIRST, False


def seed():
    """The present seed, printed, so that pytest shows it with a failure."""
    global _drawn
    _drawn = True
    print(f"TPU_SEED={_present}", file=sys.stderr)
    return _present


def go_to(number):
    """Makes the seed the one of round `number`, counted from 0."""
    global _present, _drawn
    _present, _drawn = FIRST + number, False


def was_drawn():
    """Whether anyone asked for the seed since :func:`go_to`."""
    return _drawn
