"""Operands that several stages read side by side (`StageCode.share`): loaded once, with the bits of the golden model."""

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.sim.compiler import search
from amaranth_tpu.sim.compiler.codegen.stage_code import StageCode
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.ir.graph import Graph, Stage, Tensor, Term
from graphs import check, random_values

CORE = Config(n=4, accumulator_depth=128)


def heads(rng, positions, split=1):
    """Returns the graph of an attention layer with one head. Its queries are computed in `split` parts."""
    tensors = {name: Tensor(name, 4, 1, positions) for name in ("x", "q", "k", "v", "y")}
    tensors["s"] = Tensor("s", positions, 1, positions)
    size, part = (1, positions), positions // split

    def weights():
        return random_values(rng, (1, 1, 4, 4), 0.5)

    places = range(0, positions, part)
    stages = [Stage(f"q{x}", "q", (Term("x", weights(), padding=(0, -x)),), (1, part), origin=(0, x)) for x in places]
    stages += [Stage(name, name, (Term("x", weights()),), size) for name in "kv"]
    stages.append(Stage("s", "s", (Term("q", np.zeros((1, 1, 4, positions), bfloat16), data="k"),), size, softmax=True))
    shares = Term("s", np.zeros((1, 1, positions, 4), bfloat16), data="v", rows=True)
    stages.append(Stage("y", "y", (shares,), size))
    return Graph("heads", tensors, "x", "y", tuple(stages))


def input_rows(graph, batch):
    ops = compile_network(graph, CORE, batch).ops
    return sum(op.rows for op in ops if op.opcode is Opcode.LOAD and op.fields["region"] is Region.INPUT)


def test_queries_keys_and_values_load_their_operand_once(rng, monkeypatch):
    graph, batch = heads(rng, 8), 3
    monkeypatch.setenv("TPU_PROGRAMS_MB", "0")
    monkeypatch.setattr(search, "with_residents", lambda *_: None)  # with residents, the stages have jobs of different samples
    together = input_rows(graph, batch)
    share = StageCode.share
    monkeypatch.setattr(StageCode, "share", lambda code, shared, _: share(code, shared, False))
    assert together == 8 * batch and input_rows(graph, batch) == 3 * together


def test_bits_of_shared_operands(rng):
    for split, batch in ((1, 3), (2, 2)):
        check(heads(rng, 8, split), CORE, batch, rng)
