"""Tests that a wrong program of a training step is noticed before the RTL uses it."""

from dataclasses import replace

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.golden.dropout import Dropout
from amaranth_tpu.sim.host import program_check
from amaranth_tpu.sim.ir.losses import Loss
from amaranth_tpu.sim.ir.optimizers import Adam, Sgd
from amaranth_tpu.sim.trainer import new_training, step_check
from language_models import language_model
from training_runs import clusters, dense_network, write_dense_model
from training_runs import new_training as training_of

CORE = Config(n=4, training=True, ring=True)


def changed(program, bit):
    model = bytearray(program.model)
    model[bit // 8] ^= 1 << bit % 8
    return replace(program, model=bytes(model))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.5), Adam()])
def test_every_bit_of_an_instruction_counts(rng, cores, optimizer, monkeypatch):
    """Steps with dropout and with labels that do not count, on one core and on a ring. Of six changed bits, other random steps
    notice at most one that the check did not."""
    network = replace(dense_network(np.random.default_rng(5)), is_counted=True)
    training = training_of(rng, network, optimizer=optimizer, dropout=Dropout(0.5), cores=cores)
    program = new_training.step_program(training, CORE)
    assert step_check.checked_step(training, program).checked
    refusals = later = 0
    for bit in rng.choice(8 * program.instructions * CORE.instruction_bytes, 6, replace=False):
        other = changed(program, bit)
        try:
            step_check.checked_step(training, other)
        except tpu.RunError as error:
            assert str(error).startswith(
                f"the compiler made a wrong program of a training step of small, for a batch of {8 // cores}"
            )
            refusals += 1
            continue
        monkeypatch.setattr(step_check, "_SEED", 99)
        try:
            step_check.checked_step(training, other)
        except tpu.RunError:
            later += 1
        monkeypatch.undo()
    assert refusals and later <= 1


def test_squared_error(rng):
    network = replace(dense_network(np.random.default_rng(5)), loss=Loss.SQUARED_ERROR)
    training = training_of(rng, network)
    assert step_check.checked_step(training, new_training.step_program(training, CORE)).checked


def test_masks_of_attention(rng, tmp_path, monkeypatch):
    """Constants of -inf, as in the mask of a GPT, do not leave a step unchecked."""
    ids, started = rng.integers(0, 3, (2, 2)), []
    monkeypatch.setattr(new_training, "StepRunner", lambda *given, **options: started.append(given) or pytest.skip())
    with pytest.raises(pytest.skip.Exception):
        tpu.load(language_model(rng, 2, 4, 1, 3).save(tmp_path)).fit(
            ids, ids, batch_size=2, check_steps=1, on="icarus", core=Config(n=4)
        )
    assert started[0][0].checked


@pytest.fixture
def broken(monkeypatch):
    """Breaks the compiler: the first instruction of a step is not one."""
    compiled = new_training.compile_step
    monkeypatch.setattr(new_training, "compile_step", lambda *given: changed(compiled(*given), 7))


def test_fit_refuses_a_wrong_step(rng, tmp_path, broken, monkeypatch):
    model = tpu.load(write_dense_model(tmp_path / "m.onnx", rng))
    x, y = clusters(rng, 20)
    given = {"batch_size": 10, "check_steps": 1, "on": "icarus", "core": CORE}
    with pytest.raises(tpu.RunError, match="a training step of m, for a batch of 10 .* fault ILLEGAL at pc 0x0; please report"):
        model.fit(x, y, **given)
    model.check_programs, started = False, []
    monkeypatch.setattr(new_training, "StepRunner", lambda *given, **options: started.append(given) or pytest.skip())
    with pytest.raises(pytest.skip.Exception):
        model.fit(x, y, **given)
    assert not started[0][0].checked


def test_second_check_costs_nothing(rng, tmp_path, monkeypatch):
    """A program that was checked is not checked again, also for other weights; another optimizer makes another program."""
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.delenv("TPU_PROGRAMS_MB")
    runs, steps = [], step_check._golden_steps
    monkeypatch.setattr(step_check, "_golden_steps", lambda *given: runs.append(given) or steps(*given))
    for optimizer, count in ((Sgd(), 1), (Sgd(), 1), (Sgd(momentum=0.5), 2)):
        training = training_of(rng, optimizer=optimizer)
        assert step_check.checked_step(training, new_training.step_program(training, CORE)).checked and len(runs) == count


def test_steps_that_diverge_are_not_checked(rng, caplog):
    training = training_of(rng, learning_rate=1e30)
    program = new_training.step_program(training, CORE)
    assert not step_check.checked_step(training, program).checked
    assert "the program of a training step of small is not checked" in caplog.text


def test_slow_step_runs_once(rng, monkeypatch):
    runs, steps = [], step_check._golden_steps
    monkeypatch.setattr(step_check, "_golden_steps", lambda *given: runs.append(given[1]) or steps(*given))
    monkeypatch.setattr(program_check, "_PYTHON", (1e6, 0, 0))
    training = training_of(rng)
    step_check.checked_step(training, new_training.step_program(training, CORE))
    assert runs == [1]
