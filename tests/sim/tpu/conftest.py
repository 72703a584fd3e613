"""A small model of dense layers, and samples for it."""

import pytest

from training_runs import clusters, write_dense_model


@pytest.fixture
def path(rng, tmp_path):
    return write_dense_model(tmp_path / "small.onnx", rng)


@pytest.fixture
def data(request, rng):
    return clusters(rng, request.module.COUNT)
