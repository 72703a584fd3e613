"""Control path, from words in host memory to unit operations: fetch, decode, dispatch, run control, registers.

A *run* is one execution of a program, from a start command to HALT or a fault. A *slot* is one of the places for instructions in
flight.
"""
