"""Proofs of the arithmetic."""
