"""Tests that the timing model counts the cycles of the RTL for each further instruction of a kind."""

import pytest

from amaranth_tpu.hw.spec.isa import INSTRUCTIONS, Format, FunctionCode, Half, Opcode, Region
from amaranth_tpu.sim.compiler.codegen.emitter import Emitter
from amaranth_tpu.sim.compiler.timing.model import simulate
from core_runs import FULL, MemoryBuilder, image_of, run

_RESULTS = dict(lanes=4, buffer=8, function=FunctionCode.NONE, format=Format.BFLOAT16)
_PASSES = dict(keep=1, rows1=1, rows0_stride=1, tiles0=1, tiles1=1)
#: Instructions, each with its other fields zero, and the accepted relative error.
CASES = {
    "load": (Opcode.LOAD, dict(region=Region.INPUT, rows=16), 0.03),
    "load of biases": (Opcode.LOAD_BIAS, dict(region=Region.INPUT, rows=8, half=Half.WHOLE), 0.03),
    "store": (Opcode.STORE, dict(region=Region.OUTPUT, rows=16), 0.08),
    "passes over one row": (Opcode.MATMUL, _PASSES | dict(rows0=1), 0.01),
    "passes over the same row": (Opcode.MATMUL, _PASSES | dict(rows0=1, tiles1=16), 0.01),
    "passes over a later row": (Opcode.MATMUL, _PASSES | dict(rows0=3, tiles0=4, tiles0_acc_stride=1), 0.01),
    "passes over other rows": (Opcode.MATMUL, _PASSES | dict(rows0=4, tiles0=4, tiles0_acc_stride=4), 0.01),
    "results": (Opcode.ACTIVATE, _RESULTS | dict(rows=8), 0.01),
    "pooling": (Opcode.POOL, _RESULTS | dict(rows0=3, rows1=2, window0=2, window1=1), 0.01),
    "products": (Opcode.MULTIPLY, dict(lanes=4, rows=6, buffer=8, operand=16), 0.04),
    "products of results": (Opcode.MULTIPLY, dict(lanes=4, rows=6, buffer=10, operand=8), 0.04),
    "selection": (Opcode.SELECT, dict(rows0=3, rows1=2, buffer=8), 0.01),
}


def _program(opcode, fields, count):
    emitter = Emitter(FULL, {Region.OUTPUT: 64})
    emitter.transfer(Opcode.LOAD_WEIGHTS, Region.INPUT, 0, 1)
    for one, given in [(Opcode.MATMUL, dict(start=1, rows0=1, rows1=1, tiles0=1, tiles1=1)), *[(opcode, fields)] * count]:
        emitter.emit(one, dict.fromkeys(INSTRUCTIONS[one].widths, 0) | given)
    return emitter.ops


def test_each_kind_of_instruction(rng):
    host = MemoryBuilder(rng)
    given = {name: host.place(bytes(2048)) for name in ("INPUT", "OUTPUT", "SCRATCH")}
    programs = [_program(*fields, count) for *fields, _ in CASES.values() for count in (10, 40)]
    images = [image_of(FULL, [*((op.opcode, op.fields) for op in ops), (Opcode.HALT, {})]) for ops in programs]
    runs = [{"regions": given | {"MODEL": host.place(image)}, "timeout": 20_000, "limit": 200_000} for image in images]
    result = run(FULL, host, runs, memory={"latency": 32})
    cycles = [one["counters"]["cycles"] for one in result["runs"]]
    expected = [simulate(ops, FULL).cycles for ops in programs]
    for number, (name, (*_, error)) in enumerate(CASES.items()):
        few, many = 2 * number, 2 * number + 1
        assert expected[many] - expected[few] == pytest.approx(cycles[many] - cycles[few], rel=error), name
        assert expected[few] == pytest.approx(cycles[few], rel=0.1), name
