"""A small model and samples for tests of `tpu train`."""

import numpy as np
import pytest

from amaranth_tpu.scripts.cli import train_job
from amaranth_tpu.sim.golden.sums import Sums
from training_runs import FIXED, write_dense_model, write_samples


@pytest.fixture(autouse=True)
def in_numpy(monkeypatch):
    """Replaces numba by numpy for sums, because numba compiles longer than these small networks train."""
    monkeypatch.setattr(train_job, "fastest_sums", Sums)


@pytest.fixture
def model(tmp_path):
    return write_dense_model(tmp_path / "model.onnx", np.random.default_rng(5))


@pytest.fixture
def data(tmp_path):
    rows, labels = write_samples(tmp_path, np.random.default_rng(FIXED), 300)
    return "--input", rows, "--labels", labels


@pytest.fixture
def tests(tmp_path):
    rows, labels = write_samples(tmp_path, np.random.default_rng(FIXED + 1), 80, "test")
    return "--test-input", rows, "--test-labels", labels
