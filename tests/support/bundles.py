"""Execution of a bundle's files as a host does it."""

import numpy as np

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.sim.golden.machines import machine_of


def wrong_bytes(bundle, config):
    """Executes the memory image on a model of the core. Returns the number of bytes in region OUTPUT that differ from
    `output.bin`."""
    regions = {Region.MODEL: bundle.files["model.bin"], Region.INPUT: bundle.files["input.bin"]}
    regions |= {Region.OUTPUT: bytearray(bundle.model.output_bytes), Region.SCRATCH: bytearray(bundle.model.scratch_bytes)}
    machine_of(config, regions).run()
    pair = (np.frombuffer(image, np.uint8) for image in (regions[Region.OUTPUT], bundle.files["output.bin"]))
    return int(np.count_nonzero(np.subtract(*pair)))
