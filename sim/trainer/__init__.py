"""Training of a network: epochs, rates, checkpoints, and the comparison of steps with a core."""
