"""Symbolic tensors, which record the node, row, column and channel of each value.

For its terms, see :mod:`sim.frontend`.
"""
