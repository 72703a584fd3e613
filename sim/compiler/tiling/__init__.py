"""Division of stages into pieces that fit the buffers."""
