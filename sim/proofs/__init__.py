"""Formal proofs: arithmetic, activation lanes, the ring's flow control; by induction, queues, buses and control."""
