"""From a step or a network to a program: sums of matrix products, their jobs, and the search for an order.

1. :mod:`.step` makes the graph of a training step from network and optimizer. :mod:`.network` makes the graph of a network, which
   is a step without state; :mod:`.inference` has its program.
2. Passes over this graph: the host gathers windows of inputs (:mod:`.folding`), whose weights and bias are then one parameter
   (:mod:`.stacking`); weights of groups become weights of all channels (:mod:`.ungrouping`).
3. :mod:`.lowering` makes matrices (:mod:`.matrices`, :mod:`.forms`) of tensors, and sums of matrix products (:mod:`.sums`) of
   stages that share sums (:mod:`.grouping`). Sums read windows (:mod:`.convolutions`, :mod:`.windows`,
   :mod:`.pool_windows`); gradients of weights read copies of results (:mod:`.copies`). Cores of a ring exchange gradients and
   weights (:mod:`.ring`). Updates may be no sums (:mod:`.update_lanes`).
4. :mod:`.search` tries divisions of the batch (:mod:`.chunks`) and orders of the instructions, and keeps the fastest.
5. :mod:`.tiling` divides sums into jobs. Jobs are ordered by :mod:`.ordering`, or in steps of convolutions by :mod:`.paced`,
   with estimates (:mod:`.estimates`) and dependencies (:mod:`.runs`). Updates are a :mod:`.pipeline`.
6. :mod:`.job_writer` emits jobs (:mod:`.jobs`, :mod:`.window_jobs`, :mod:`.band_jobs`, :mod:`.scatter_jobs`) and their
   results (:mod:`.results`) by an emitter (:mod:`.emitter`, :mod:`.stores`). :mod:`.dead_stores` removes STOREs that nothing
   reads.
7. :mod:`.program` adds constants (:mod:`.constants`) and host tensors. :mod:`.step_state` packs inputs and the training state.
   :mod:`.explain` has the cycles of each sum.

For its terms, see :mod:`sim.compiler`.
"""
