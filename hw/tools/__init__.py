"""Programs of others that hardware is made with."""
