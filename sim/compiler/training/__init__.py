"""Compilation of a training step's graph as products of matrices.

For its terms, see :mod:`sim.compiler`.
"""
