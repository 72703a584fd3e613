"""The compiler, which translates a network to a program and its memory images.

Terms that all its rooms use. A *vector* is `n` channels of one position of a tensor; host memory and the unified buffer are
counted in vectors. A *column tile* is `n` output channels. A *sum* is a matrix of sums of products, with all results that are
computed from it. A *pass* multiplies rows of operands by one `n` x `n` tile of weights and adds the products to sums in the
accumulators. A *job* computes some rows and column tiles of one sum. A *chunk* is a group of samples that passes through a step
together.
"""
