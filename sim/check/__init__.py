"""Whether results are those of the model that was meant."""
