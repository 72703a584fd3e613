"""Control path, from words in host memory to unit operations: fetch, decode, dispatch, run control, registers."""
