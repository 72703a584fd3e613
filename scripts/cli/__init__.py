"""The commands: options, their checks, what they do."""
