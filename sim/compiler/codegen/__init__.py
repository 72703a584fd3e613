"""Code generation for tiled stages, and the schedule of the instructions."""
