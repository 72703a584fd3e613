"""One cell of the systolic array."""

__all__ = ["split_stages"]


def split_stages(stages):
    """`(lead, latency)` of a cell with this many pipeline stages: registers on the product's side, and on the sum's.

    Lead stages cost nothing a row: operands run ahead of the sums by `lead` cycles once for the whole array.
    """
    lead = {1: 0, 2: 1, 3: 2, 4: 2, 5: 2, 6: 3, 7: 3, 8: 3}[stages]
    return lead, stages - lead
