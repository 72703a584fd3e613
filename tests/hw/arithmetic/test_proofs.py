# amaranth: UnusedElaboratable=no
"""Tests of the SMT proofs of the arithmetic, against SMT-LIB's floating-point theory. Faulty circuits and specifications must be
refuted."""

import json
import runpy

import pytest

from amaranth_tpu.scripts import prove
from amaranth_tpu.sim.proofs.blocks import BLOCKS
from amaranth_tpu.sim.proofs.jobs import ProofJob, negative_controls, proofs
from amaranth_tpu.sim.proofs.lanes import LANES
from amaranth_tpu.sim.proofs.mutants import FlushesLeastNormal
from amaranth_tpu.sim.proofs.properties import specification
from amaranth_tpu.sim.proofs.smt import Circuit, SolverError, solve
from suites import slow

TIMEOUT = 900


def everything():
    """Yields a pytest parameter for every proof of every block; all but the fast proofs of activation lanes are slow."""
    for block in BLOCKS:
        for job in proofs(block):
            yield pytest.param(job, marks=[] if block in LANES else pytest.mark.slow, id=f"{job.block} {job.value}")


def test_multiplier():
    result = ProofJob("multiplier", 2).run(TIMEOUT)
    assert result.result == "proven" and result.as_expected and result.counterexample is None


def test_wrong_multiplier():
    result = ProofJob("multiplier", 3, "flushes too much", mutate=FlushesLeastNormal).run(TIMEOUT)
    example = result.counterexample
    assert result.result == "refuted" and result.as_expected
    assert example.golden == example.expected != example.found == example.simulated
    assert example.golden >> 23 & 0xFF == 1 and example.simulated & 0x7FFFFFFF == 0


def test_wrong_block_without_being_called_so():
    result = ProofJob("multiplier", 1, mutate=FlushesLeastNormal).run(TIMEOUT)
    assert result.result == "refuted" and not result.as_expected


@pytest.mark.slow
def test_right_block_called_wrong():
    result = ProofJob("multiplier", 1, "nothing").run(TIMEOUT)
    assert result.result == "proven" and not result.as_expected


@pytest.mark.slow
def test_wrong_specification():
    result = ProofJob("multiplier", 1, "subnormals", specification(flush=False)).run(TIMEOUT)
    example = result.counterexample
    assert result.result == "refuted" and result.as_expected
    assert example.golden == example.simulated == example.found != example.expected


def test_no_answer_is_no_proof():
    result = ProofJob("adder", (1, False)).run(0.01)
    assert result.result == "unknown" and not result.as_expected


def test_cell_keeps_its_weights():
    """Proves all properties of the cell but the first, which takes long."""
    properties = BLOCKS["cell"].properties(4, 0)
    circuit = Circuit(BLOCKS["cell"].make(4))
    assert [solve(prop.script(circuit, specification()), timeout=60).result for prop in properties[1:]] == ["unsat"] * 6


def test_solver_errors():
    with pytest.raises(SolverError, match="solver stopped with status 1; it said"):
        solve("(assert nonsense)", timeout=10)


@pytest.mark.slow
def test_command(command):
    done = command("multiplier", "--leads", "0", "--json", main=prove.main)
    (proof,) = json.loads(done.stdout)["proofs"]
    assert done.returncode == 0 and proof["result"] == "proven" and proof["block"] == "multiplier"


@pytest.mark.parametrize(
    "words, status, message",
    [
        (["adder", "--latencies", "7"], 2, "--latencies takes numbers from 1 to 6"),
        (["adder", "--write"], 2, "--write takes no choice"),
        *slow((["adder", "--latencies", "2", "--timeout", "1"], 1, "adder 2: unknown")),
    ],
)
def test_command_fails(command, words, status, message):
    done = command(*words, main=prove.main)
    assert done.returncode == status and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
def test_module_is_a_command(command):
    done = command("divider", main=lambda: runpy.run_module(prove.__name__, run_name="__main__"))
    assert done.returncode == 2 and "error: " in done.stderr and "no part 'divider'" in done.stderr


# promise: cell
@pytest.mark.parametrize("job", list(everything()))
def test_proof(job):
    assert job.run(TIMEOUT).result == "proven"


@pytest.mark.slow
@pytest.mark.parametrize("index", range(26))
def test_control(index):
    result = negative_controls()[index].run(TIMEOUT)
    assert result.as_expected, result
    assert result.result == "refuted" or result.subject.startswith("netlist")


@pytest.mark.slow
def test_controls_are_all_tested():
    assert len(negative_controls()) == 26
