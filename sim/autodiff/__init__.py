"""Reverse differentiation: the parameters of a network, and the gradients of its stages."""
