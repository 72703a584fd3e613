"""The shipped networks."""
