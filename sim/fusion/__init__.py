"""From nodes in binary64 to the stages that the core runs."""
