"""The compiler: from a network to a program and its memory images."""
