"""Symbolic tensors, which record the node, row, column and channel of each value."""
