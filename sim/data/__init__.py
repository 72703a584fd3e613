"""External data: digits, samples, array files, checkpoints, and safe display of foreign text."""
