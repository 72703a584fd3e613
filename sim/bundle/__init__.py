"""What a host without Python needs of a compiled network: images, layout, C header, test vectors."""
