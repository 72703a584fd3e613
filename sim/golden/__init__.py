"""The definition of every bit: arithmetic, functions, networks, instructions."""
