"""From a graph to sums of matrix products, and the matrices in host memory that they read and write.

:mod:`.lowering` makes matrices (:mod:`.forms`) of tensors, and sums (:mod:`.sums`) of stages that share sums
(:mod:`.grouping`). Sums read windows (:mod:`.convolutions`); gradients of weights read copies of results (:mod:`.copies`). Cores
of a ring exchange gradients and weights (:mod:`.ring`). Updates may be no sums (:mod:`.update_lanes`).
"""
