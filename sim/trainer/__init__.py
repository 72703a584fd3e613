"""Training: epochs, learning rates, checkpoints, and the comparison of steps with a core."""
