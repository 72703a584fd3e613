"""What software and units see of the core: instructions, operations, registers, the serial protocol."""
