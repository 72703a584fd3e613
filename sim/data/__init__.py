"""External data: digits, samples, array files, checkpoints; text for terminals: progress, foreign text."""
