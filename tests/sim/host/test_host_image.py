"""Tests of the size of the simulated host memory."""

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim.host import host_image


@pytest.mark.parametrize("simulator, least", [("icarus", 1 << 20), ("verilator", 1 << 24)])
@pytest.mark.parametrize("cores", [1, 2])
def test_memory_has_a_least_size_and_room_for_the_program(monkeypatch, simulator, least, cores):
    """Programs of different sizes share builds, above all of Verilator. Icarus sets each word to zero before a run, so its memory
    stays small."""
    monkeypatch.setattr(host_image, "verilog_of", lambda config: "")
    for needed, expected in ((1, least), (least, least), (least + 1, 2 * least), (5 << 24, 8 << 24)):
        simulation = host_image.core_simulation(Config(), simulator=simulator, memory_bytes=needed, cores=cores)
        assert simulation.parameters["MEMORY_BYTES"] == expected
