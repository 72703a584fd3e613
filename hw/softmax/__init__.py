"""Softmax on several lanes, with several rows in flight: maximum, exponentials, sums, division, results."""
