"""Division of sums into jobs that fit the memories, of the batch into chunks, and runs of sums with the same jobs."""
