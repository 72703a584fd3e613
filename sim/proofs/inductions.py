"""All proofs by induction."""

from .bus import MANAGERS
from .control import CONTROL
from .dispatch import DISPATCH
from .moves import MOVES
from .queues import QUEUES
from .softmax import SOFTMAX
from .tiles import TILES
from .transaction_id import TRANSACTION_IDS

__all__ = ["INDUCTIONS"]

#: The proofs, in the order of the table in `hw/proofs.md`.
INDUCTIONS = [*QUEUES, *MANAGERS, *TRANSACTION_IDS, *CONTROL, *DISPATCH, *MOVES, *TILES, *SOFTMAX]
