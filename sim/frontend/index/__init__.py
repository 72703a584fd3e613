"""Symbolic tensors, which record the node, row, column and channel of each value.

The terms are defined in :mod:`sim.frontend`.
"""
