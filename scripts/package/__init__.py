"""The package of a core for SoC tools: IP-XACT, constraints, core file, device tree, first simulation."""
