"""From words in host memory to operations of the units: fetch, decode, dispatch, run, registers."""
