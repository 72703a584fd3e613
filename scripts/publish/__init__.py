"""What is written into the datasheet."""
