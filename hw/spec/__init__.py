"""The programming interface and the ports inside the core: instructions, operations, registers, the serial protocol."""
