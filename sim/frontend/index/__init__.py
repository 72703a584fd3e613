"""Symbolic tensors: for each value, the node, row, column and channel that hold it."""
