"""Estimators of scikit-learn that train on the golden model, whose bits are the core's."""

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from ..export.plain import plain_model
from ..golden.arithmetic import bfloat16
from ..host.inference import even_batch
from ..ir.graph import dense_chain
from ..ir.model_ends import softmax
from ..trainer.errors import ArgumentError
from .load import load

__all__ = ["Classifier", "Regressor"]


class _Estimator(BaseEstimator):
    def __init__(
        self,
        hidden_layers=(64,),
        *,
        model=None,
        epochs=50,
        batch_size=32,
        optimizer="adam",
        learning_rate=0.005,
        seed=1,
        scale=True,
        settings=None,
    ):
        self.hidden_layers, self.model, self.epochs, self.batch_size = hidden_layers, model, epochs, batch_size
        self.optimizer, self.learning_rate, self.seed = optimizer, learning_rate, seed
        self.scale, self.settings = scale, settings

    def _fit(self, x, y, results, loss):
        """Trains the network on checked samples."""
        self.mean_, self.deviation_ = _statistics(x) if self.scale else (0.0, 1.0)
        x = (x - self.mean_) / self.deviation_
        given = {
            "epochs": self.epochs,
            "batch_size": even_batch(len(x), self.batch_size),
            "optimizer": self.optimizer,
            "loss": loss,
        }
        given |= {"learning_rate": self.learning_rate, "seed": self.seed, "verbose": False} | (self.settings or {})
        if self.model is None:
            model = load(_dense_model([x.shape[1], *self.hidden_layers, results]))
            given["initialize"] = True
        else:
            model = load(self.model)
            if model.network.output_size != results:
                raise ArgumentError(f"`model` has {model.network.output_size} results, and the data need {results}")
        self.history_ = model.fit(x, y, **given)
        self._trained = model
        self.onnx_ = model.proto().SerializeToString(deterministic=True)
        return self

    def _results(self, x):
        check_is_fitted(self)
        x = validate_data(self, x, dtype="numeric", reset=False).astype(np.float64)
        x = (x - self.mean_) / self.deviation_
        return np.asarray(self._loaded().predict(x, check=False), np.float64).reshape(len(x), -1)

    def _loaded(self):
        trained = self.__dict__.get("_trained")
        return load(self.onnx_) if trained is None else trained

    def save(self, path):
        """Writes the trained network to an ONNX file. With `scale`, it takes and returns standardised numbers."""
        check_is_fitted(self)
        self._loaded().save(path)

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "_trained"}  # it owns a temporary file


class Classifier(ClassifierMixin, _Estimator):
    """A classifier of scikit-learn, for Pipeline, cross_val_score and GridSearchCV. It needs the package scikit-learn.

    Parameters
    ----------
    hidden_layers : tuple of int
        Results of each hidden layer with ReLU, of a network that starts from random weights.
    model : path, onnx.ModelProto, bytes or None
        A network with a result for each class, which is trained from its own weights in place of such layers.
    epochs, batch_size, optimizer, learning_rate, seed
        As in :meth:`Model.fit`. Batches have at most this size, and are equally full.
    scale : bool
        Standardise samples, and the wanted numbers of a regressor, by the training set's mean and deviation.
    settings : dict or None
        Further arguments of :meth:`Model.fit`, such as `{"check_steps": 2}`.

    Attributes
    ----------
    classes_ : array
    history_ : History
    onnx_ : bytes
        The trained network as ONNX file.
    mean_, deviation_ : array
        Of the training set, with `scale`.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline                   # doctest: +SKIP
    >>> from sklearn.preprocessing import StandardScaler             # doctest: +SKIP
    >>> from amaranth_tpu import tpu
    >>> make_pipeline(StandardScaler(), tpu.Classifier((32,))).fit(x, y).score(x, y)  # doctest: +SKIP
    0.98
    """

    def fit(self, x, y):
        """Trains a new network on samples (count, features) and their classes, which may be of any type."""
        x, y = validate_data(self, x, y, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier needs samples of several classes, and y has one class")
        return self._fit(x, numbers, len(self.classes_), "cross_entropy")

    def predict_proba(self, x):
        """Returns the share of each class, (count, classes)."""
        results = self._results(x)
        network = self._loaded().network
        if network.stages[-1].softmax or network.origin.output.last == "softmax":
            return results / results.sum(axis=1, keepdims=True)
        return softmax(results)

    def predict(self, x):
        """Returns the class of each sample."""
        return self.classes_[self._results(x).argmax(axis=1)] if hasattr(self, "classes_") else self._results(x)


class Regressor(RegressorMixin, _Estimator):
    """A regressor of scikit-learn, with the mean squared error or another loss of numbers.

    Parameters
    ----------
    hidden_layers, model, epochs, batch_size, optimizer, learning_rate, seed, scale
        As in :class:`Classifier`. A model has as many results as there are wanted numbers.
    settings : dict or None
        Further arguments of :meth:`Model.fit`, such as `{"loss": "huber"}`.
    """

    def fit(self, x, y):
        """Trains a new network on samples (count, features) and wanted numbers, (count,) or (count, numbers)."""
        x, y = validate_data(self, x, y, multi_output=True, y_numeric=True)
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        self._is_vector = y.ndim == 1
        settings = self.settings or {}
        self.y_mean_, self.y_deviation_ = _statistics(y) if self.scale else (0.0, 1.0)
        y = (y - self.y_mean_) / self.y_deviation_
        return self._fit(x, y, 1 if self._is_vector else y.shape[1], settings.get("loss", "mse"))

    def predict(self, x):
        """Returns the results, in the shape of the wanted numbers."""
        results = self._results(x)
        return (results[:, 0] if self._is_vector else results) * self.y_deviation_ + self.y_mean_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _statistics(values):
    """Returns mean and deviation along the samples. A constant has the deviation 1."""
    deviation = values.astype(np.float64).std(axis=0)
    return values.mean(axis=0, dtype=np.float64), np.where(deviation == 0, 1, deviation)


def _dense_model(sizes):
    """Returns the onnx.ModelProto of dense layers with weights of 0."""
    last = len(sizes) - 2
    layers = []
    for number, (rows, columns) in enumerate(zip(sizes, sizes[1:])):
        weights, bias = np.zeros((rows, columns), bfloat16), np.zeros(columns, np.float32)
        layers.append((f"dense{number}", weights, bias, "none" if number == last else "relu"))
    return plain_model(dense_chain("dense", layers))
