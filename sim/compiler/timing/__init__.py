"""The timing model, which estimates the cycles of a program without its data.

For its terms, see :mod:`sim.compiler`.
"""
