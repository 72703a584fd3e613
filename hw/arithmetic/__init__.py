"""Floating-point arithmetic: formats, multiplier, adder, comparator, exponential, reciprocal."""
