"""Formulas of tensors, which express chains of elementwise operators."""
