"""The blocks that have formal proofs."""

from .lanes import LANES
from .properties import ARITHMETIC

__all__ = ["BLOCKS"]

#: Blocks by name.
BLOCKS = {**ARITHMETIC, **LANES}
