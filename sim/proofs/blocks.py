"""The blocks that are proven."""

from .lanes import LANES
from .properties import ARITHMETIC

__all__ = ["BLOCKS"]

#: By name.
BLOCKS = {**ARITHMETIC, **LANES}
