"""Reverse differentiation: from a network, a loss and an optimizer to the graph of a training step."""
