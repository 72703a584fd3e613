"""Tests of the recovery from soft errors: one bit of a control register flips during a run. After a reset by `control.reset` the
next program has the model's results. Meanwhile the core keeps the rules of AXI, and writes nothing outside OUTPUT and SCRATCH of
this program and of the one before."""

import re
from collections import Counter

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.golden.isa_model import Machine
from amaranth_tpu.sim.rtl.verilog_cache import verilog_of
from amaranth_tpu.sim.verification.programs import Hazards
from core_programs import Case
from core_runs import NARROW, TINY, MemoryBuilder, op, run

#: Blocks of the control path, without checked addresses and without the managers, whose state AXI allows no reset to lose.
BLOCKS = ["dispatcher", "dispatcher.scoreboard", "dispatcher.load_queue", "dispatcher.matmul_queue", "fetch", "run"]
BLOCKS += ["matmul", "matmul.issuer", "matmul.generator", "load", "store", "weights", "stalls"]
#: Widest register that counts as control.
WIDEST = 8
#: Registers of the host, of places in host memory, and the flags of operations, whose places may be of an earlier program.
LEFT_OUT = re.compile("registers__|address|block|base|first|end|data|payload|row|op__valid")


def control_registers(verilog):
    """Yields the name and the width of the small registers of the blocks."""
    for block in BLOCKS:
        text = re.search(rf"^module tpu_{block.replace('.', '_')} \(.*?^endmodule", verilog, re.M | re.S)[0]
        for high, name in re.findall(r"^  (?:output )?reg +(?:\[(\d+):0\] )?([a-z]\w*)[;,]", text, re.M):
            if int(high or 0) < WIDEST and not LEFT_OUT.search(name):
                yield f"{block}.{name}", int(high or 0) + 1


def check_flips(rng, config, count):
    host, machine, hazards = MemoryBuilder(rng), Machine(config), Hazards(rng, config)
    registers = dict(control_registers(verilog_of(config)))
    assert len(registers) > 80, "registers have other names"
    cases, scratch = [Case(rng, host, machine, hazards.make(60))], []  # all memories are known after the first program
    runs = [cases[0].run]
    stores = [op(Opcode.LOAD, region=Region.INPUT, rows=1), *[op(Opcode.STORE, region=Region.OUTPUT, rows=1)] * 12]
    for _ in range(count):
        name = str(rng.choice([*registers]))
        hurt = Case(rng, host, Machine(config), hazards.make(24), timeout=300).run
        flip = [int(rng.integers(5, 400)), name, int(rng.integers(registers[name]))]
        cases.append(Case(rng, host, machine, hazards.make(16)))
        # A flipped bit may repeat a STORE of the program before. So a program with STOREs alone is before each.
        before = Case(rng, host, Machine(config), [*stores, op(Opcode.HALT)]).run
        runs += [before, hurt | {"flip": flip, "limit": 4000, "polls": 100, "until_quiet": 3000}, cases[-1].run]
        scratch += [one["regions"][region] for region in ("OUTPUT", "SCRATCH") for one in (before, hurt)]
    result = run(config, host, runs, simulator="icarus", memory={"latency": 7})
    expected = bytearray(host.bytes)
    for case in cases:
        case.write(expected)
    for base, size in scratch:  # the results of a run with a flip are undefined
        expected[base : base + size] = result["memory"][base : base + size]
    assert [one["fault"] for one in result["runs"][::3]] == [None] * (count + 1)
    assert all(one["quiet"] for one in result["runs"][2::3]), "the bus is not quiet after a reset"
    wrong = np.flatnonzero(np.frombuffer(expected, np.uint8) != np.frombuffer(result["memory"], np.uint8))
    assert not len(wrong), f"{len(wrong)} bytes differ, from {wrong[0]:#x} on; flips: {[one['flip'] for one in runs[2::3]]}"
    return Counter(str(one["fault"] and one["fault"][0]) for one in result["runs"][2::3])


@pytest.mark.slow
@pytest.mark.parametrize("count", [20])
def test_core_recovers_from_flipped_bits(rng, count):
    ends = check_flips(rng, Config(**TINY | NARROW), count)
    assert ends["None"] and len(ends) > 1, "no flip had an effect"
