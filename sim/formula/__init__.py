"""Whether a formula of one number is a function of the core."""
