"""Softmax and normalization on several lanes, with several rows in flight: maximum, sums, division, results."""
