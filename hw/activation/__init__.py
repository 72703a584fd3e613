"""From accumulators to the unified buffer: pooling, functions, softmax."""
