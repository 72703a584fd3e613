"""The RTL in a simulator: builds, runs, and the host memory beside it."""
