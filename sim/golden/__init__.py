"""The reference model, which defines every bit: arithmetic, functions, networks, instructions."""
