"""Tests of function tables that are loaded while earlier stages run, beside the functions that these use."""

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode
from amaranth_tpu.sim.compiler import search
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.functions.functions import NONE, Function
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term
from graphs import check, random_values
from suites import slow

CORE = Config(n=4, unified_buffer_depth=1024)
RECIPROCAL, GELU, TANH = Function("reciprocal"), Function("gelu"), Function("tanh")


def chain(rng, *functions, channels=12, positions=48):
    """Returns a graph of dense layers with these functions over several positions."""
    tensors, stages = {"x": Tensor("x", channels, 1, positions)}, []
    for number, function in enumerate(functions):
        name, source = f"t{number}", list(tensors)[-1]
        tensors[name] = Tensor(name, channels, 1, positions)
        term = Term(source, random_values(rng, (1, 1, channels, channels), channels**-0.5))
        bias = rng.uniform(1, 2, channels).astype(np.float32)
        stages.append(Stage(name, name, (term,), (1, positions), bias=bias, function=function))
    return Graph("chain", tensors, "x", name, tuple(stages))


def table_loads(program):
    """Returns `{stage: vectors of function tables that are loaded}`."""
    found: dict[int, int] = {}
    for op in program.ops:
        if op.opcode is Opcode.LOAD_TABLE:
            found[op.stage] = found.get(op.stage, 0) + op.fields["rows"]
    return found


@pytest.mark.parametrize(
    "functions", [(NONE, NONE, GELU), *slow([RECIPROCAL, NONE, NONE, RECIPROCAL, GELU], [RECIPROCAL, TANH, NONE, GELU])]
)
def test_bits_and_cycles(rng, monkeypatch, functions):
    """With a table loaded ahead, bits match the golden model. The program takes fewer cycles, and loads as many vectors."""
    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    graph, batch, last = chain(rng, *functions), 4, len(functions) - 1
    ahead = check(graph, CORE, batch, rng)
    monkeypatch.setattr(search, "with_tables_ahead", lambda *_: None)
    alone = compile_network(graph, CORE, batch)
    assert table_loads(ahead)[last] < table_loads(alone)[last] and ahead.predicted_cycles < alone.predicted_cycles
    assert sum(table_loads(ahead).values()) == sum(table_loads(alone).values())
