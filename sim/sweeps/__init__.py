"""Sweeps: what models cost on many cores, point by point."""
