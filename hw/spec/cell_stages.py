"""The pipeline stages of a cell: supported numbers, and their placement."""

__all__ = ["STAGES", "split_stages"]

#: Supported numbers of pipeline stages of a cell.
STAGES = range(1, 10)


def split_stages(stages):
    """Returns `(lead, latency)` of a cell with `stages` pipeline stages: registers of the product path, and of the sum path.

    Stages in `lead` add no cycles per row: operands run `lead` cycles ahead of the sums, once for the whole array. The sum path
    is longer, however, so most stages must be placed there for clock speed.
    """
    lead = {1: 0, 2: 1, 3: 2, 4: 1, 5: 1, 6: 2, 7: 2, 8: 3, 9: 3}[stages]
    return lead, stages - lead
