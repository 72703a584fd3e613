"""Formulas of tensors, which express chains of elementwise operators.

The terms are defined in :mod:`sim.frontend`.
"""
