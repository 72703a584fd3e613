"""Registry of the blocks with proofs."""

from .lanes import LANES
from .properties import ARITHMETIC

__all__ = ["BLOCKS"]

#: By name.
BLOCKS = {**ARITHMETIC, **LANES}
