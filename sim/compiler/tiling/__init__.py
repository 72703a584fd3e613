"""Tiling: division of stages into pieces that fit the buffers."""
