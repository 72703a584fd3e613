"""Passes of the compiler that rewrite the graph. Each takes a graph and returns a graph.

For its terms, see :mod:`sim.compiler`.
"""
