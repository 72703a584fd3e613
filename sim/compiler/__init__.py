"""The compiler, which translates a network to a program and its memory images.

Terms that all its rooms use. A *vector* is `n` channels of one position of a tensor; host memory and the unified buffer are
counted in vectors. A *column tile* is `n` output channels. A *pass* multiplies rows of operands by one `n` x `n` tile of weights
and adds the products to sums in the accumulators. A *job* computes a rectangle of one stage's results for some samples. A *group*
is a set of column tiles whose passes alternate. A *block* is a set of operands that are loaded together.

A *run* is a range of consecutive stages that the program executes together. If a stage has one position per sample, the samples
of the batch are stored along x, as if they were positions; a *chunk* is the group of samples that passes through such a run
together. A *resident* tensor stays in the unified buffer between stages; its *home* is its address there.
"""
