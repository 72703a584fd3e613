"""AXI, and what moves data between host memory and chip."""
