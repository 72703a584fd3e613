"""A pass over Nexus netlists for the first cells of carry chains.

Yosys begins each chain with a cell that generates the chain's carry from one of its inputs, and connects the carry input of that
cell to a constant. nextpnr accepts only carries of other cells there.
"""

__all__ = ["free_carry_starts"]

#: The second half generates its input A as the carry, with its other inputs at 1. The carry before it has no effect.
_GENERATES = "0x00AA"


def free_carry_starts(module):
    """Disconnects the carry inputs of first cells (`CCU2`) of a flat module of Yosys' JSON, in place, where they have no effect.

    Returns
    -------
    int
        Number of cells.
    """
    cells = [cell for cell in module["cells"].values() if cell["type"] == "CCU2"]
    carries = {bit for cell in cells for bit in cell["connections"].get("COUT", [])}
    first = [
        cell
        for cell in cells
        if cell["parameters"]["INIT1"] == _GENERATES and not carries.intersection(cell["connections"].get("CIN", []))
    ]
    for cell in first:
        cell["connections"]["CIN"] = []
    return len(first)
