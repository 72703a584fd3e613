"""Synthesis attributes for the large memories."""

__all__ = ["NO_COLLISIONS"]

#: The interlocks make sure that no block uses data read from an address that is written in the same cycle. Without this
#: attribute, Yosys adds logic and a copy of the memory to define such a read.
NO_COLLISIONS = {"no_rw_check": 1}
