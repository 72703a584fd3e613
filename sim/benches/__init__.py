"""cocotb benches."""
