"""The systolic array and the memories around it."""
