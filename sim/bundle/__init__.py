"""Files for a host without Python: images of a compiled network, layout, C header, test vectors."""
