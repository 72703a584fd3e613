"""Formal proofs of the arithmetic, the activation lanes and the ring's flow control."""
