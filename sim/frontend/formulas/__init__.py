"""Formulas of tensors, which express chains of elementwise operators.

For its terms, see :mod:`sim.frontend`.
"""
