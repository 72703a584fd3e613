"""Instructions for tiled stages, and their order."""
