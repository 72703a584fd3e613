"""Tiling, which divides stages into jobs whose data fits the buffers.

For its terms, see :mod:`sim.compiler`.
"""
