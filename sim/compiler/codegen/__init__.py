"""Code generation: instructions for tiled stages, and their schedule."""
