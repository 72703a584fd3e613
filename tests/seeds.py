"""The seed of random stimulus: `TPU_SEED` if it is set, else drawn anew."""

import os
import random

__all__ = ["SEED", "seed"]

SEED = int(os.environ.get("TPU_SEED") or random.SystemRandom().randrange(1, 1 << 31))


def seed():
    """:data:`SEED`, printed, so that pytest shows it with a failure."""
    print(f"TPU_SEED={SEED}")
    return SEED
