"""Softmax on several lanes, with several rows in flight: search, exponentials, sums, division, results."""
