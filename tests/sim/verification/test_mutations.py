"""Tests of the grammar of mutations, and of the tests that run on a mutant."""

import ast

import pytest

from amaranth_tpu.scripts import mutate
from amaranth_tpu.sim.verification.mutations import mutations_of

SOURCE = '''"""A text: 1 + 1."""
__all__ = ["unit"]

def unit(m, a: int = 3):
    with m.If(a < 4):
        m.d.sync += [a.eq(Mux(b, c, d)), e.eq(~f)]
    if not a:
        raise ValueError(f"{a + 1} is out of range")
    return a if a and True else Signal(5)
'''


def test_mutations_of_a_source():
    found = {(one.line, one.text) for one in mutations_of(SOURCE)}
    assert found >= {
        (4, "3 -> 4"),
        (4, "3 -> 2"),
        (5, "a < 4 -> a <= 4"),
        (5, "m.If(a < 4) -> m.If(~(a < 4))"),
        (6, "Mux(b, c, d) -> Mux(b, d, c)"),
        (6, "a.eq(Mux(b, c, d)) -> nothing"),
        (6, "~f -> f"),
        (7, "not a -> a"),
        (9, "a and True -> a or True"),
        (9, "True -> False"),
        (9, "a if a and True else Signal(5) -> Signal(5) if a and True else a"),
        (9, "5 -> 4"),
    }
    assert (9, "5 -> 6") not in found, "a wider signal changes nothing"
    assert not {line for line, _ in found} & {1, 2, 8}, "texts, exports and errors have no meaning for the hardware"


def test_each_mutation_changes_one_place():
    for one in mutations_of(SOURCE):
        assert one.source != SOURCE and ast.dump(ast.parse(one.source)) != ast.dump(ast.parse(SOURCE))
        before, after = SOURCE.splitlines(), one.source.splitlines()
        assert [line for line in range(len(before)) if before[line] != after[line]] == [one.line - 1]
        assert one.code == before[one.line - 1].strip()


def test_drawn_mutants_have_tests(seed):
    drawn = mutate.draw(20, seed)
    assert len({path for path, _ in drawn}) > 8 and all(mutate.test_stages(path) for path, _ in drawn)
    assert mutate.draw(20, seed) == drawn
    stages = mutate.test_stages("hw/ring/link_fifo.py")
    assert "tests/hw/ring/test_link_fifo.py" in stages[0] and stages[-2:] == [["tests/hw/ring"], ["tests/hw/core"]]
    assert any("tests/sim/proofs" in stage for stage in mutate.test_stages("hw/lib/short_fifo.py"))
    assert "tests/hw/spec/test_datasheet.py" in mutate.test_stages("hw/cycles.py")[0]
    assert mutate.test_stages("sim/compiler/passes/folding.py") == [["tests/sim/compiler"]]
    few = mutate.draw(9999, seed, ["hw/ring/ring_guard.py"])
    assert 5 < len(few) < 1000 and len({(one.line, one.source) for _, one in few}) == len(few)


@pytest.mark.slow
def test_a_mutant_in_a_copy(monkeypatch, tmp_path):
    """The tests in the copy of the tree import the copy: they notice a changed file, and pass again afterwards."""
    path, tests = "hw/lib/width_converter.py", "tests/hw/lib/test_width_converter.py"
    monkeypatch.setattr(mutate, "test_stages", lambda _: [[tests]])
    tree = mutate.copy_tree(tmp_path)
    source = (tree / path).read_text()
    assert mutate.is_noticed(tree, path, "raise ImportError\n" + source, [1]).startswith(tests)
    assert mutate.is_noticed(tree, path, source, [1]) is None
