"""Measurements: the tables of results and datasheet, each made by a command."""
