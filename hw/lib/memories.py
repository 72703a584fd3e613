"""What synthesis may take for granted of the large memories."""

__all__ = ["NO_COLLISIONS"]

#: Whoever reads an address in the cycle in which it is written does not use the data: the interlocks see to that. Without
#: this, Yosys spends logic, and a second copy of the memory, on what such a read returns.
NO_COLLISIONS = {"no_rw_check": 1}
