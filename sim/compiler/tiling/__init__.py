"""Tiling, which divides stages into jobs whose data fits the buffers."""
