"""Numbers: how they are written, multiplied, added and compared."""
