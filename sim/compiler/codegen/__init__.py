"""Code generation for tiled stages, and the schedule of the instructions.

For its terms, see :mod:`sim.compiler`.
"""
