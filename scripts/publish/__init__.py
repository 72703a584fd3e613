"""Generated tables of the datasheet, and the register map as C header and SVD."""
