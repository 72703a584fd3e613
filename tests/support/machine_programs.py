"""Short programs for tests of the instruction-level model, and the expected result of a pass, computed cell by cell."""

import numpy as np

from amaranth_tpu.hw.spec.encoding import encode
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden import arithmetic as golden
from amaranth_tpu.sim.golden.isa_model import Machine, MachineFault
from amaranth_tpu.sim.rtl.number_classes import numbers

HALT = (Opcode.HALT, {})


def program(config, *words):
    """Returns the image of a program; each word is an int or (opcode, fields)."""
    words = [word if isinstance(word, int) else encode(word[0], **word[1]) for word in words]
    return b"".join(word.to_bytes(config.instruction_bytes, "little") for word in words)


def machine_of(config, words, model_data=b"", scratch=4096, **regions):
    """Returns a Machine with the program `words` in MODEL and zeros in OUTPUT and SCRATCH; `regions` replaces or adds regions."""
    return Machine(
        config,
        {
            Region.MODEL: program(config, *words) + model_data,
            Region.OUTPUT: bytearray(256),
            Region.SCRATCH: bytearray(scratch),
            **{Region[name]: data for name, data in regions.items()},
        },
    )


def random_bfloat16(rng, shape):
    return numbers(rng, shape, 0.2, 16).astype(np.uint16)


def random_binary32(rng, shape):
    return numbers(rng, shape, 0.2)


def cell_by_cell(x, tile, acc):
    """Returns the accumulators after one pass, computed by one multiply-accumulate at a time down the rows k of the tile."""
    acc = acc.copy()
    for row in range(len(x)):
        for column in range(tile.shape[1]):
            for k in range(len(tile)):
                acc[row, column] = golden.multiply_accumulate(acc[row, column], x[row, k], tile[k, column])
    return acc


def fault_in(config, word, **more):
    """Runs `word` as the second of two instructions. Returns `(cause, pc)` of its fault or (None, None), and checks that a
    refused word has no effect."""
    m = machine_of(config, [(Opcode.SYNC, {}), word, HALT], **more)
    before = [m.buffer.copy(), m.sums.copy(), m.bias.copy(), bytes(m.regions[Region.SCRATCH])]
    try:
        m.run()
    except MachineFault as fault:
        after = [m.buffer, m.sums, m.bias, bytes(m.regions[Region.SCRATCH])]
        assert all(np.array_equal(a, b) for a, b in zip(before, after)), "a refused instruction had an effect"
        return fault.cause, fault.pc
    return None, None
