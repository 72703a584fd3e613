"""Standard cells: area, delay and energy of a core in the cells of a Liberty file."""
