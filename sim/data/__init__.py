"""What comes from outside: digits, samples, arrays, and text that may be shown."""
