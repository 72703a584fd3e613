"""From a network to a program and its memory images."""
