"""What synthesis may take for granted of the large memories."""

__all__ = ["NO_COLLISIONS"]

#: No block uses the data of a read of an address that is written in the same cycle: the interlocks see to that. Without
#: this, Yosys spends logic, and a second copy of the memory, on what such a read returns.
NO_COLLISIONS = {"no_rw_check": 1}
