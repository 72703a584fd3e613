"""From a network to what a training step computes: parameters, and gradients stage by stage."""
