# amaranth: UnusedElaboratable=no
"""Tests that the blocks do in each cycle what the timing diagrams of the datasheet show."""

import struct

import pytest

from amaranth_tpu.hw.array.cell import Cell
from amaranth_tpu.hw.array.transposer import Transposer
from amaranth_tpu.hw.array.weight_fifo import WeightFifo
from amaranth_tpu.hw.bus.axi_reader import AxiReader
from amaranth_tpu.hw.bus.axi_writer import AxiWriter
from amaranth_tpu.hw.bus.burst_splitter import burst_request
from amaranth_tpu.hw.bus.read_unit import ReadUnit
from amaranth_tpu.hw.bus.store_unit import StoreUnit
from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.control.control_registers import ControlRegisters
from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import RingMode
from amaranth_tpu.hw.spec.operations import ring_layout, transfer_layout
from amaranth_tpu.hw.spec.registers import REGISTER
from amaranth_tpu.scripts.datasheet import DATASHEET
from amaranth_tpu.sim.rtl.ports import pack
from diagrams import Diagram, diagram_of

BUS = {"address_width": 32, "data_width": 64}
CORE = Config(n=4)
RING = Config(n=2, ring=True, **PLAIN)
#: Vectors of two words, and of four.
PAIRS = {"a0": 0xA2_00A1, "a1": 0xA4_00A3, "b0": 0xB2_00B1, "b1": 0xB4_00B3, "a.0": 0xA3_00A1, "a.1": 0xA4_00A2}
BEATS = {"a": 1001, "b": 1002, "a0": 2001, "a1": 2002, "b0": 2003}


def _burst(beats, address):
    return pack(burst_request(32), beats=beats, address=address, last=1)


def _transfer(vectors, row, address, slot):
    return pack(transfer_layout(CORE), vectors=vectors, row=row, address=address, tag={"slot": slot}, bias=0, transpose=0)


def _binary32(value):
    return int.from_bytes(struct.pack("<f", value), "little")


def _fifo_lane(signal):
    port, lane = signal.rstrip("]").split("[")
    return port.replace(".", "__"), int(lane), 2


TRANSFERS = {"A": _transfer(2, 10, 0x100, 1), "B": _transfer(1, 20, 0x200, 2)}
BURSTS = {"A": _burst(2, 0x100), "B": _burst(1, 0x200)}
WORDS = {f"{name}{row}": PAIRS[f"{name}{row}"] for name in "ab" for row in (0, 1)}
#: {title: (component, numbers of the symbols, other arguments)}.
DIAGRAMS = {
    "Weight FIFO": lambda: (
        WeightFifo(n=2, tiles=2, skew=1),
        WORDS | {(f"edge.w[{lane}]", name): word >> 16 * lane & 0xFFFF for lane in (0, 1) for name, word in WORDS.items()},
        {"lanes": {name: _fifo_lane(name) for name in (f"edge.{part}[{i}]" for part in ("mark", "w", "switch") for i in (0, 1))}},
    ),
    "Transposer": lambda: (Transposer(n=2), PAIRS, {}),
    "Ring unit": lambda: (
        RingUnit(config=RING),
        {
            "A": pack(
                ring_layout(RING),
                **dict(mode=RingMode.ALL_REDUCE, buffer=10, result=20, segment=1, stride=1, rounds=1, tag={"slot": 1}),
            ),
            **{name: _binary32(value) for name, value in {"a0": 7, "a1": 1, "r1": 2, "s1": 3, "s0": 12}.items()},
        },
        {"held": {**{"running": 1, "position__size": 2, "buffer__grant": 1, "sent__tready": 1}, "received__tlast": 1}},
    ),
    "Load unit": lambda: (
        ReadUnit(transfer=transfer_layout(CORE), bus_width=64, vector_width=64),
        BEATS | TRANSFERS | {("host.request", name): burst for name, burst in BURSTS.items()},
        {"held": {"host__request__ready": 1}},
    ),
    "Store unit": lambda: (
        StoreUnit(transfer=transfer_layout(CORE), bus_width=64, vector_width=64, outstanding=4),
        BEATS | TRANSFERS | {("host.burst", name): burst for name, burst in BURSTS.items()},
        {"held": {"host__burst__ready": 1, "host__data__ready": 1, "buffer__grant": 1}},
    ),
    "AXI4-Lite registers": lambda: (
        ControlRegisters(config=CORE),
        {"ctrl": REGISTER["control"].offset, "cyc": REGISTER["cycles"].offset, "c": 1234},
        {"held": {"bus__bready": 1, "bus__rready": 1, "bus__wstrb": 15, "run__cycles": 1234}},
    ),
    "AXI read manager": lambda: (
        AxiReader(**BUS),
        BEATS
        | {("load.request", name): _burst(1, address) for name, address in (("A", 0x100), ("B", 0x200))}
        | {("bus.araddr", "A"): 0x100, ("bus.araddr", "B"): 0x200},
        {"held": {"own__settled": 1, "bus__arready": 1, "bus__rlast": 1}},
    ),
    "AXI write manager": lambda: (
        AxiWriter(**BUS),
        BEATS | {"A": _burst(2, 0x100), "B": _burst(1, 0x200)},
        {"held": {"own__settled": 1, "bus__awready": 1, "bus__wready": 1}},
    ),
    "Cell": lambda: (Cell(stages=1), {"w0": 0x3F80, "w1": 0x4000, "x0": 0x4040, "x1": 0x4080}, {}),
}


# promise: load-done, store-ahead
@pytest.mark.parametrize("title", DIAGRAMS)
def test_block_does_what_its_diagram_shows(title):
    component, values, options = DIAGRAMS[title]()
    diagram = diagram_of(DATASHEET.read_text(), title)
    found = diagram.play(component, values, **options)
    assert found == {signal: diagram.rows[signal] for signal in found}


def test_wrong_diagram_is_found():
    text = "cycle      0    1    2    3    4    5\ni_valid    1    1    0    0    0    0\ni          a0   a1   -    -    -    -\n"
    found = Diagram(text + "o_valid    0    0    0    0    1    1\n").play(Transposer(n=2), PAIRS)
    assert found == {"o_valid": ["0", "0", "0", "0", "0x0", "1"]}
