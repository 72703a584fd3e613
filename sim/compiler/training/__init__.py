"""The compiler of training steps: from a training graph to the program of one step.

For its terms, see :mod:`sim.compiler`.
"""
