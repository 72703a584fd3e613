"""Tests that proofs of expressions take bounded work per model, for any number of consecutive operators."""

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.frontend.operators import expressions
from amaranth_tpu.sim.functions import proof as proofs_of_functions
from amaranth_tpu.sim.functions.formulas import VARIABLE
from amaranth_tpu.sim.functions.functions import Function
from amaranth_tpu.sim.functions.proof import MOST_WORK, proof
from onnx_models import Builder, refused
from suites import slow


@pytest.fixture
def proofs(monkeypatch):
    """Returns a list to which each proof's work is appended, with an empty cache of proven expressions."""
    made = []

    def counted(one, function):
        made.append(proof(one, function))
        return made[-1]

    monkeypatch.setattr(expressions, "proof", counted)
    expressions._function.cache_clear()
    yield made
    expressions._function.cache_clear()


def _chain(b, count, rng=None):
    """Appends a dense layer and `count` nodes of x + x, x * x, x - x or max(x, x), in turn or drawn by `rng`. Returns the last
    name."""
    operators = ("Add", "Mul", "Sub", "Max")
    x = b("Gemm", np.eye(4, dtype=np.float32))
    for place in range(count):
        x = b.node(str(rng.choice(operators)) if rng else operators[place % 4], [x, x])
    return x


@pytest.mark.parametrize("count", slow(12, 50, 200))
def test_row_of_operators_takes_bounded_work(rng, tmp_path, proofs, count):
    b = Builder(["n", 4], opset=18)
    _chain(b, count, rng)
    model = tpu.load(b.save(tmp_path))
    assert sum(work for _, work in proofs) <= expressions.MOST_PROOFS + MOST_WORK
    assert model.compare(np.zeros((2, 4), np.float32)).error is None


def test_operators_are_computed_one_by_one_after_the_share(rng, tmp_path, proofs, monkeypatch):
    monkeypatch.setattr(expressions, "MOST_PROOFS", 1)
    b = Builder(["n", 4], opset=18)
    _chain(b, 30)
    model = tpu.load(b.save(tmp_path))
    assert 0 < sum(work > 0 for _, work in proofs) <= 1
    assert model.compare(rng.normal(size=(4, 4)).astype(np.float32)).error is None


def test_refusal_names_the_share(tmp_path, monkeypatch):
    monkeypatch.setattr(expressions, "MOST_PROOFS", 0)
    b = Builder(["n", 4], opset=18)
    b("Gemm", np.eye(4, dtype=np.float32))
    b("Log", name="odd")
    b("Neg")
    refused(b.save(tmp_path), "operator Log, node 'odd'", "too many different expressions")


def test_known_expression_is_paid_once(tmp_path, monkeypatch, proofs):
    """A network of 40 equal layers pays for the proof of their function once, even if another model paid for it earlier."""
    b = Builder(["n", 4], opset=18)
    x = b("Gemm", np.eye(4, dtype=np.float32))
    for _ in range(40):
        x = b("Gemm", np.eye(4, dtype=np.float32))
        b.node("Mul", [x, b.node("Sigmoid", [x])])
    path = b.save(tmp_path)
    left = []
    for _ in range(2):
        stages = tpu.load(path).network.stages
        assert sum(stage.function == Function("silu") for stage in stages) == 40
        left.append(expressions._share.left)
    assert left[0] == left[1] >= expressions.MOST_PROOFS - max(work for _, work in proofs)


def test_one_proof_is_given_up(monkeypatch):
    silu = Function("silu")
    right, work = proof(silu.formula(VARIABLE), silu)
    assert right and work <= MOST_WORK / 3
    monkeypatch.setattr(proofs_of_functions, "MOST_WORK", work - 1)
    assert proof(silu.formula(VARIABLE), silu) == (False, work)
