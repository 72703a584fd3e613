"""Proofs of the arithmetic, and of the ring's credits."""
