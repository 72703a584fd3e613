"""The timing model, which estimates the cycles of a program without its data."""
