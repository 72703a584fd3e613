"""Measurements for the tables of results and datasheet. Each table is made by a command."""
