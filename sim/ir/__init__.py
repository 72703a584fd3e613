"""The compiler's intermediate form of a network."""
