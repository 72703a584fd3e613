"""Code generation: jobs of sums as instructions, the memory that they access, and their schedule.

:mod:`.job_writer` emits jobs (:mod:`.jobs`, :mod:`.window_jobs`, :mod:`.band_jobs`, :mod:`.copy_jobs`, :mod:`.ring_jobs`) and
their results (:mod:`.results`) by an emitter (:mod:`.matrix_emitter`). :mod:`.dead_stores` removes STOREs that nothing reads.
"""
