"""Scalar functions, their derivatives, and proofs that a formula is one of them."""
