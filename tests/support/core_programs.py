"""Programs with the results of the instruction-level model, and random ones on the core."""

import numpy as np

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, TABLE_ENTRIES, Region
from amaranth_tpu.sim.golden.isa_model import Machine, MachineFault
from amaranth_tpu.sim.golden.table_lookup import Table
from amaranth_tpu.sim.rtl.number_classes import numbers
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from amaranth_tpu.sim.verification.programs import SIZES, Hazards
from core_runs import MemoryBuilder, image_of, run, same, usual_simulator
from ring_loop import looped


class Case:
    """A program with its own memory regions, and its results on the instruction-level model."""

    sizes = SIZES

    def __init__(self, rng, host, machine, program, *, model_bytes=None, pc=0, timeout=20_000, ring=None, share=0.06):
        """Runs the program on `machine`. If `ring` is `(rank, size)` with a size of 1 or 2, the core is its own neighbour.
        `share` is the fraction of numbers in memory that are infinities, NaN, large and of other classes. A NaN makes many
        results NaN."""
        self.program, self.pc = program, pc
        words = {name: numbers(rng, size // 2, share, 16).astype(np.uint16) for name, size in self.sizes.items()}
        contents = {name: bits.tobytes() for name, bits in words.items()}
        contents["MODEL"] = image_of(machine.config, program)[:model_bytes]
        regions = {name: host.place(data) for name, data in contents.items()}
        self.run = {"regions": regions, "pc": pc, "timeout": timeout, "limit": 200_000}
        if ring:
            self.run["ring"] = ring
            machine.rank, machine.size = ring
        machine.regions = {Region[name]: bytearray(data) for name, data in contents.items()}
        self.fault = None
        try:
            run_looped(machine, pc)
        except MachineFault as fault:
            self.fault = [fault.cause.name, fault.pc]
        self.after = {name: bytes(machine.regions[Region[name]]) for name in contents}

    def write(self, memory):
        for name, data in self.after.items():
            base, size = self.run["regions"][name]
            memory[base : base + size] = data


def run_looped(machine, pc=0):
    run, got = machine.exchanges(pc), None
    try:
        while True:
            wait = run.send(got)
            got = looped(wait.mode, wait.vectors, machine.rank, machine.size)
    except StopIteration:
        return


def least_fields(opcode, rows=1, lanes=1):
    record = INSTRUCTIONS[opcode]
    fields = dict.fromkeys(record.counts, 1) | {"rows": rows, "rows0": rows, "rows0_stride": int(rows > 1)}
    fields |= {"lanes": lanes, "region": Region.SCRATCH, "keep": 1}
    return {name: value for name, value in fields.items() if name in record.widths}


def with_known_table(verilog, machine):
    """Returns Verilog of a core whose function table is initialised, and gives `machine` the same table. Filling the table takes
    10,000 cycles, which are seconds in Icarus Verilog."""
    entries = np.arange(TABLE_ENTRIES)
    values, slopes = 0x3C00 ^ (entries * 0x9E37 & 0x83FF), entries * 0xB5C5 & 0xFFFF
    machine.table = Table(0, 0, 0, np.stack([values, slopes], axis=-1).astype(np.uint16).ravel())
    before, name, after = verilog.partition("\nmodule tpu_function_pair (")
    pair, end, rest = after.partition("\nendmodule")
    initial = f"""
  integer known;
  initial for (known = 0; known < {TABLE_ENTRIES}; known = known + 1) begin
    values[known] = 'h3c00 ^ (known * 'h9e37 & 'h83ff);
    slopes[known] = known * 'hb5c5;
  end"""
    return before + name + pair + initial + end + rest


def check_hazards(
    rng,
    config,
    programs,
    *,
    simulator=None,
    memory=None,
    length=60,
    verilog=None,
    timeout=20_000,
    with_table=with_known_table,
    seconds=900,
):
    """Compares random programs on the core with the machine model. `with_table` initialises the function table, for Icarus
    Verilog. A simulation of more than `seconds` is stopped."""
    host, machine = MemoryBuilder(rng), Machine(config)
    simulator = simulator or usual_simulator(config, verilog)
    known_table = bool(simulator == "icarus" and config.table_lanes)
    if known_table:
        verilog = with_table(verilog or verilog_of(config), machine)
    hazards = Hazards(rng, config, known_table)
    cases = []
    for number in range(programs):
        cores = 2 - number % 2 if config.ring else 1
        ring = (int(rng.integers(cores)), cores) if config.ring else None
        cases.append(Case(rng, host, machine, hazards.make(length, cores), timeout=timeout, ring=ring))
    values = np.frombuffer(b"".join(case.after["OUTPUT"] for case in cases), np.uint16)
    assert len(np.unique(values)) > len(values) / 20, "too many equal results for a test"
    assert [case.fault for case in cases] == [None] * programs
    expected = bytearray(host.bytes)
    for case in cases:
        case.write(expected)
    runs = [case.run for case in cases]
    result = run(config, host, runs, simulator=simulator, memory=memory, verilog=verilog, timeout=seconds)
    assert [one["fault"] for one in result["runs"]] == [None] * programs
    for number, case in enumerate(cases):
        for name, (base, size) in case.run["regions"].items():
            found = np.frombuffer(result["memory"][base : base + size], np.uint8)
            wrong = np.flatnonzero(found != np.frombuffer(case.after[name], np.uint8))
            assert not len(wrong), f"program {number}: {len(wrong)} bytes of {name} differ, from {wrong[0]:#x} on\n" + "\n".join(
                f"{o.name} {f}" for o, f in case.program
            )
    same(expected, result["memory"])
