"""The networks that are shipped."""
