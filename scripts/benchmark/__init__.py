"""Measurements: the tables of README and datasheet, each made by a command."""
