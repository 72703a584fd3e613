"""Tests of the estimators of scikit-learn, by its own checks, in pipelines and in searches. They run where it is installed."""

import pickle

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from onnx_models import Builder, weights
from training_runs import CLASSES, INPUTS, clusters

sklearn = pytest.importorskip("sklearn", reason="needs the package scikit-learn")

from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import estimator_checks_generator  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of scikit-learn's own checks

ESTIMATORS = [tpu.Classifier((16,), epochs=20, learning_rate=0.02), tpu.Regressor((16,), epochs=30, learning_rate=0.02)]
#: Checks of the fast suite. The others train for seconds.
FAST = (
    "check_estimators_pickle",
    "check_n_features_in",
    "check_estimators_nan_inf",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
)


def _checks():
    for estimator in ESTIMATORS:
        for _, check in estimator_checks_generator(estimator, legacy=True):
            name = getattr(check, "func", check).__name__
            marks = () if name in FAST else (pytest.mark.slow,)
            yield pytest.param(estimator, check, id=f"{type(estimator).__name__}-{name}", marks=marks)


@pytest.mark.parametrize("estimator, check", [*_checks()])
def test_checks_of_scikit_learn(estimator, check):
    check(sklearn.clone(estimator))


@pytest.fixture
def data():
    return clusters(np.random.default_rng(3), 120)


def test_pipeline_and_search(data):
    """A pipeline is cross-validated, and a search over two rates finds the one that learns."""
    x, y = data
    names = np.array(["ant", "bee", "cat", "dog"])[y]
    pipeline = make_pipeline(StandardScaler(), tpu.Classifier((8,), epochs=30, learning_rate=0.05))
    assert cross_val_score(pipeline, x, names, cv=2).mean() > 0.5
    search = GridSearchCV(pipeline, {"classifier__learning_rate": [1e-6, 0.05]}, cv=2).fit(x, names)
    assert search.best_params_ == {"classifier__learning_rate": 0.05} and search.best_score_ > 0.8
    assert set(search.predict(x)) <= set(names)


def test_results_are_the_network_s(data, tmp_path):
    """Probabilities are the Softmax of the saved network's results, also after pickling; steps on the core have the same bits."""
    x, y = data
    one = tpu.Classifier((8,), epochs=2, settings={"check_steps": 1, "core": tpu.Config(n=4)}).fit(x, y)
    assert one.history_.core["mismatched_bits"] == 0
    one.save(tmp_path / "dense.onnx")
    logits = (
        tpu.load(tmp_path / "dense.onnx").predict((x - x.mean(axis=0, dtype=float)) / x.std(axis=0, dtype=float)).astype(float)
    )
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(one.predict_proba(x), shares, rtol=1e-6)
    again = pickle.loads(pickle.dumps(one))
    assert (again.predict_proba(x) == one.predict_proba(x)).all() and (again.predict(x) == logits.argmax(axis=1)).all()


@pytest.mark.parametrize("last", [None, "Softmax"])
def test_own_network(rng, data, tmp_path, last):
    """A network of a file is trained from its own weights; a wrong number of results is refused."""
    x, y = data
    b = Builder(["n", INPUTS])
    b("Gemm", weights(rng, INPUTS, CLASSES), weights(rng, CLASSES))
    if last:
        b(last)
    path = b.save(tmp_path)
    one, model = tpu.Classifier(model=path, epochs=1, learning_rate=0.05, scale=False).fit(x, y), tpu.load(path)
    model.fit(x, y, epochs=1, batch_size=30, learning_rate=0.05, verbose=False)  # four equal batches
    assert one.onnx_ == model.proto().SerializeToString(deterministic=True)
    np.testing.assert_allclose(one.predict_proba(x).sum(axis=1), 1, rtol=1e-6)
    with pytest.raises(tpu.ArgumentError, match="`model` has 4 results, and the data need 2"):
        tpu.Classifier(model=path).fit(x, y > 1)


def test_regressor_of_several_numbers(data):
    x, y = data[0] + 50, data[0][:, :2] * [1, -2000]
    one = tpu.Regressor((), epochs=40, settings={"loss": "huber"}, learning_rate=0.05).fit(x, y)
    assert one.predict(x).shape == (120, 2) and one.score(x, y) > 0.9


def test_without_scikit_learn(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "amaranth_tpu.sim.tpu.estimators", None)
    monkeypatch.delattr(tpu, "estimators", raising=False)
    with pytest.raises(ImportError, match="tpu.Classifier needs scikit-learn 1.6 or later .*: pip install scikit-learn"):
        tpu.Classifier  # noqa: B018
