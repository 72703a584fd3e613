"""Matrices in host memory, windows of images in the unified buffer, and the division of the core's memories."""
