"""Rewrites of the graph: Graph -> Graph."""
