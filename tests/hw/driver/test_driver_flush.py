"""Tests that the C and the Python driver flush the links of all cores of a ring at once, and report vectors that are left."""

import asyncio
import ctypes

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.host.driver import Driver, flush_ring
from amaranth_tpu.sim.ir.graph import dense_chain
from c_driver import Core, Session, host_of
from stand_in_registers import FAULT, RUNNING

CONFIG = Config(n=4, unified_buffer_depth=256, accumulator_depth=64, ring=True)
FLUSH = 1 << 16
LOOKS = 7
#: Values of register `ring` of the two cores: rank and size of the ring.
PLACES = [0x200, 0x201]


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    layer = "one", np.ones((4, 4), bfloat16), np.zeros(4, np.float32), "none"
    return host_of(dense_chain("net", [layer]), CONFIG, np.ones((1, 4), np.float32), tmp_path_factory.mktemp("flush"))


class Registers:
    """Registers of one core of a ring. All cores append to one log of reads ("r") and writes ("w")."""

    def __init__(self, number, log, **override):
        self.number, self.log, self.override = number, log, override
        self.values = {REGISTER["ring"].offset: PLACES[number]}

    def read(self, context, offset):
        self.log.append(("r", self.number, offset))
        names = {REGISTER[name].offset: value for name, value in self.override.items()}
        return names.get(offset, self.values.get(offset, 0))

    def write(self, context, offset, value):
        self.log.append(("w", self.number, offset, value))
        self.values[offset] = value


class Port:
    """An adapter of `Registers` to the asynchronous interface of the Python driver."""

    def __init__(self, registers):
        self.registers = registers

    async def read(self, offset):
        return self.registers.read(None, offset)

    async def write(self, offset, value):
        self.registers.write(None, offset, value)


def flush_in_c(host, registers):
    for each in registers:  # the C driver gives the cores their places
        each.values[REGISTER["ring"].offset] = REGISTER["ring"].reset
    sessions = [Session(host, each) for each in registers]
    for session in sessions:
        session.core.port = ctypes.pointer(session.port)
    cores = (ctypes.POINTER(Core) * len(sessions))(*(ctypes.pointer(session.core) for session in sessions))
    return host.library.tpu_flush_ring(cores, len(sessions), LOOKS)


def flush_in_python(host, registers):
    asyncio.run(flush_ring([Driver(Port(each)) for each in registers], LOOKS))
    return 0


@pytest.mark.parametrize("flush", [flush_in_c, flush_in_python])
def test_all_cores_flush_at_once(host, flush):
    """A driver (in C or Python) starts the flush in all cores of a ring before it ends the flush in any core. Each core has its
    rank and the size of the ring. Before and after the flush, the driver polls the `ring_state` of each core the required number
    of times."""
    log = []
    assert flush(host, [Registers(number, log) for number in range(2)]) == 0
    ring, state = REGISTER["ring"].offset, REGISTER["ring_state"].offset
    writes = [(number, value) for kind, number, offset, *more in log if kind == "w" and offset == ring for value in more]
    assert writes == [(0, PLACES[0] | FLUSH), (1, PLACES[1] | FLUSH), (0, PLACES[0]), (1, PLACES[1])]
    ends = next(index for index, entry in enumerate(log) if entry == ("w", 0, ring, PLACES[0]))
    for looks in (log[:ends], log[ends:]):
        assert all(looks.count(("r", number, state)) >= LOOKS for number in range(2))


@pytest.mark.parametrize("field", REGISTER["ring_state"].fields)
def test_link_that_is_not_empty(host, field):
    state = 1 << REGISTER["ring_state"].fields[field][0]
    registers = [Registers(0, []), Registers(1, [], ring_state=state)]
    assert flush_in_c(host, registers) == 13
    assert host.library.tpu_text(13) == b"a link between cores is not empty after a flush"
    with pytest.raises(RuntimeError, match=rf"core 1: the link is not empty.*'{field}': 1.*aresetn"):
        flush_in_python(host, registers)


@pytest.mark.parametrize("status, error", [(RUNNING, 8), (RUNNING | FAULT, 11)])
def test_flush_during_a_run_is_refused(host, status, error):
    log = []
    assert flush_in_c(host, [Registers(0, log), Registers(1, log, status=status)]) == error
    assert not any(kind == "w" for kind, *_ in log)
