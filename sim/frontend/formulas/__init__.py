"""Formulas of tensors: chains of elementwise operators as expressions."""
