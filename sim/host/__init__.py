"""Runs of networks on a core: the driver, in simulation and on a board."""
