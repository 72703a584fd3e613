"""Scalar functions, their derivatives, and proofs that a formula equals a function."""
