"""Fusion of nodes in binary64 into the stages that the core runs."""
