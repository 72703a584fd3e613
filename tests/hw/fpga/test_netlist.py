"""Tests of Yosys' ECP5 netlists by simulating a core's netlist and proving a cell's netlist equal to its source."""

import functools
import re

import numpy as np
import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.hw.fpga.gate_level import (
    CELL_TO_NETLIST,
    cell_equivalence,
    cell_netlist,
    core_netlist,
    flip_lut_bit,
    netlist_logic,
)
from amaranth_tpu.hw.spec.isa import TABLE_ENTRIES
from amaranth_tpu.hw.verilog.export import to_verilog
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.golden.network import run_network
from amaranth_tpu.sim.golden.table_lookup import Table
from amaranth_tpu.sim.host.inference import InferenceImage
from amaranth_tpu.sim.host.rtl_run import run_batches
from amaranth_tpu.sim.ir.graph import dense_chain
from amaranth_tpu.sim.proofs.jobs import ProofJob
from amaranth_tpu.sim.rtl.bench_runs import SimulationError
from amaranth_tpu.sim.rtl.ecp5_cells import block_models
from amaranth_tpu.sim.rtl.runner import Simulation
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from core_programs import check_hazards
from core_runs import FULL

#: A small core, but with block and distributed memories and a hard multiplier in each cell.
DEPTHS = dict(unified_buffer_depth=256, accumulator_depth=64, bias_depth=16, weight_fifo_depth=8)
CONFIG = Config(n=2, cell_stages=3, bus_width=32, in_flight=4, **DEPTHS, **PLAIN)
#: Output bits of a cell: x, w, sum, mark and switch.
OUTPUT_BITS = 16 + 16 + 32 + 2


def small_network():
    rng = np.random.default_rng(1)

    def weights(inputs, outputs):
        return rng.standard_normal((inputs, outputs), np.float32).astype(bfloat16)

    network = dense_chain(
        "small", (("first", weights(5, 7), rng.standard_normal(7, np.float32), "relu"), ("second", weights(7, 3), None, "none"))
    )
    return network, weights(4, 5)


def run(verilog):
    """Runs two batches on the given Verilog in Icarus Verilog. Returns the bits of the logits and the cycles of each batch."""
    network, samples = small_network()
    program = compile_network(network, CONFIG, 2)
    host = InferenceImage(program, samples)
    simulation = Simulation.of_core(verilog, CONFIG, simulator="icarus", memory_bytes=1 << 20)
    result = run_batches(simulation, host.bytes, host.batches, outputs=host.outputs, cycle_limit=20_000, timeout=900)
    assert result["fault"] is None and result["protocol_errors"] == 0
    return host.results(result["output"]).view(np.uint32), [batch["cycles"] for batch in result["batches"]]


@pytest.mark.slow
def test_core():
    source = to_verilog(CONFIG)
    netlist = core_netlist(source)
    # The netlist contains the primitives that the simulation models describe.
    for cell in ("LUT4", "CCU2C", "TRELLIS_FF", "TRELLIS_DPR16X4", "DP16KD", "MULT18X18D"):
        assert f"  {cell} " in netlist
    network, samples = small_network()
    logits, cycles = run(netlist_logic(netlist) + block_models())
    assert (logits == run_network(network, samples).view(np.uint32)).all()
    assert cycles == run(source)[1]


def with_equal_entries(verilog, machine):
    """Gives all entries of the function table the same bits, in the machine model and in the netlist's block memories of 4 bits.
    Filling the table takes 10,000 cycles, of which Icarus Verilog simulates less than a hundred a second."""
    machine.table = Table(0, 0, 0, np.full(2 * TABLE_ENTRIES, 0x3333, np.uint16))
    memory, before = "    reg [8:0] bytes [0:2047];\n", "    integer entry;\n    initial if (DATA_WIDTH_A == 4) "
    assert memory in verilog and ".DATA_WIDTH_A(32'd4)" in verilog
    return verilog.replace(memory, f"{memory}{before}for (entry = 0; entry < 2048; entry = entry + 1) bytes[entry] = 'h33;\n")


@pytest.mark.slow
def test_programs_on_core_with_every_feature(rng):
    verilog = logic() + block_models()
    check_hazards(rng, FULL, 3, length=80, memory={"latency": 2}, verilog=verilog, with_table=with_equal_entries, seconds=3600)


@functools.cache
def logic():
    return netlist_logic(core_netlist(verilog_of(FULL), quick=True))


def modules(verilog):
    """Returns {name: text} of the modules of a Verilog text."""
    return {re.match(r"module ([^\s(]+)", text)[1]: text for text in re.split(r"(?m)^(?=module )", verilog)[1:]}


def is_noticed(rng, module, wrong):
    """Returns True if programs as of the test above differ on a core that has the text `wrong` in the place of a module. Only
    this module is a netlist, so that the simulation takes a twentieth of the time."""
    source = verilog_of(FULL)
    verilog = source.replace(modules(source)[module], wrong) + block_models()
    try:
        check_hazards(rng, FULL, 3, length=80, memory={"latency": 2}, verilog=verilog, simulator="icarus")
    except (AssertionError, SimulationError, TimeoutError):
        return True
    return False


@pytest.mark.slow
def test_inverted_lookup_tables_are_noticed(rng):
    """Some of eight inverted lookup tables are noticed, and none that is as Yosys made it. Of nine, seven were noticed."""
    source, netlist, noticed = modules(verilog_of(FULL)), modules(logic()), []
    places = [
        (name, *table.span(1))
        for name, text in netlist.items()
        # The memory of a function pair must have a known table, and ports without a name have another number in the netlist.
        if name in source and name != "tpu_function_pair" and "$" not in text.partition(");")[0]
        for table in re.finditer(r"(?m)^  assign \\\S+\.Z  = (.*);$", text)
    ]
    chosen = [places[int(place)] for place in rng.choice(len(places), 8, replace=False)]
    for name, start, end in chosen:
        text = netlist[name]
        noticed.append(is_noticed(rng, name, f"{text[:start]}~({text[start:end]}){text[end:]}\n"))
    assert sum(noticed) >= 2, [place for place, one in zip(chosen, noticed) if not one]
    assert not is_noticed(rng, name, netlist[name] + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("stages", [3, 8])
def test_cell(stages):
    result = cell_equivalence(*cell_netlist(stages))
    assert result.proven == result.pairs >= OUTPUT_BITS


@pytest.mark.slow
def test_cell_against_floating_point():
    """The cell's netlist is proven to have the same properties as its source."""
    assert ProofJob("cell", 3, changes=CELL_TO_NETLIST).run(1800).result == "proven"


@pytest.mark.slow
def test_cell_with_a_wrong_table():
    source, netlist = cell_netlist(3)
    result = cell_equivalence(source, flip_lut_bit(netlist, 0, 0))
    assert result.proven < result.pairs
