"""The seed of random stimulus, which is `TPU_SEED` or a new one for each run of pytest. `--seeds N` repeats each test with N
seeds. Seeds that failed once are in `tests/failed_seeds.txt`, and are tried each time."""

import os
import random
from pathlib import Path

#: The list of seeds that failed once: in each line, a test and a seed.
FAILED = Path(__file__).parents[1] / "failed_seeds.txt"

#: Seed of the first round, in the environment so that all processes of pytest-xdist have the same.
FIRST = int(os.environ.get("TPU_SEED") or random.SystemRandom().randrange(1, 1 << 31))
os.environ["TPU_SEED"] = str(FIRST)

_present, _drawn = FIRST, False


def seed():
    """Returns the current seed as an integer; conftest.py prints it with a failure."""
    global _drawn
    _drawn = True
    return _present


def go_to(seed):
    global _present, _drawn
    _present, _drawn = seed, False


def recorded(text):
    """Returns `[(test, seed)]` for the text of the list of failed seeds. Lines that start with # are comments."""
    lines = [line.rsplit(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(test, int(seed)) for test, seed in lines]


_FAILED = recorded(FAILED.read_text())


def rounds(test, count):
    """Returns the seeds of a test: `count` consecutive ones, then the seeds that it failed with once."""
    return [*range(FIRST, FIRST + count), *(seed for name, seed in _FAILED if name == test)]


def drawn():
    """Returns the current seed if :func:`seed` was called since :func:`go_to`. Otherwise returns None."""
    return _present if _drawn else None
