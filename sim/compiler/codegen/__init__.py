"""Instructions, the memory that they access, and their schedule.

For its terms, see :mod:`sim.compiler`.
"""
