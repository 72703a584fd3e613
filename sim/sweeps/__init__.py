"""Sweeps: cycles and area of models on many core configurations."""
