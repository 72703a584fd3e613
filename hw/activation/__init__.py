"""From accumulators to the unified buffer: pooling, activation functions, softmax."""
