"""How many pipeline stages a cell can have, and where they are."""

__all__ = ["STAGES", "split_stages"]

#: Numbers of pipeline stages that a cell can have.
STAGES = range(1, 10)


def split_stages(stages):
    """`(lead, latency)` of a cell with this many pipeline stages: registers on the product's side, and on the sum's.

    Lead stages cost nothing a row: operands run ahead of the sums by `lead` cycles once for the whole array. The sum's side is
    the longer one, though, so that most stages have to go there for speed.
    """
    lead = {1: 0, 2: 1, 3: 2, 4: 1, 5: 1, 6: 2, 7: 2, 8: 3, 9: 3}[stages]
    return lead, stages - lead
