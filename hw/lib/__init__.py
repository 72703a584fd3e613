"""Components and helpers that do not depend on the TPU."""
