"""AXI managers, and the units that move data between host memory and the core."""
