"""Layouts of tensors in host memory and in the unified buffer.

For its terms, see :mod:`sim.compiler`.
"""
