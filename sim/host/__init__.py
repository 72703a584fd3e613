"""Host software: the driver, and runs of networks in simulation and on a board."""
