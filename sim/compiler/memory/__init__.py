"""Layouts of tensors in host memory and in the unified buffer."""
