"""The timing model: cycles of a program without its data."""
