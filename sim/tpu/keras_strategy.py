"""A strategy in the place of TPUStrategy: Keras models that are compiled in its scope train on the cores of this library."""

from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np

from ..trainer.errors import ArgumentError
from .arguments import as_array, shown
from .fit_arguments import FitArguments
from .keras_models import from_keras
from .keras_objects import check_ends, compiled_metrics, is_accuracy

__all__ = ["Strategy"]

#: Arguments of Keras' fit and evaluate that must have these values.
_FIXED = {"initial_epoch": 0, "validation_freq": 1, "steps": None, "shuffle": True}


@dataclass(frozen=True)
class Strategy:
    """Trains Keras models on a ring of cores, in the place of `tf.distribute.TPUStrategy`.

    A model that is compiled in :meth:`scope` has other methods `fit`, `evaluate` and `predict`. They take Keras' arguments, and
    return what Keras' methods return. The golden model computes each step, as in :meth:`Model.fit`, with the optimizer, loss and
    metrics of `compile`. An incomplete last batch of an epoch is dropped. Other methods of the model are Keras' own.

    Parameters
    ----------
    cores : int
        Number of cores, each with an equal share of each batch.
    settings : dict
        Further arguments of :meth:`Model.fit`, such as `{"check_steps": 2, "core": "training"}`.

    Examples
    --------
    >>> import keras                                                 # doctest: +SKIP
    >>> from amaranth_tpu import tpu
    >>> with tpu.Strategy(cores=8).scope():                          # doctest: +SKIP
    ...     net = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(2, activation="softmax")])
    ...     net.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    >>> net.fit(x, y, epochs=3, batch_size=64)                       # doctest: +SKIP
    """

    cores: int = 1
    settings: dict | None = None

    def __post_init__(self):
        for name in self.settings or {}:
            if name not in [one.name for one in fields(FitArguments)]:
                raise ArgumentError(f"`settings` are arguments of fit, not {shown(name)}")

    @property
    def num_replicas_in_sync(self):
        """Returns the number of cores, by TensorFlow's name."""
        return self.cores

    @contextmanager
    def scope(self):
        """Returns a context in which `compile` gives Keras models the methods of this strategy."""
        import keras

        own, plain = keras.Model.__dict__.get("compile"), keras.Model.compile

        def compile_model(model, *given, **named):
            plain(model, *given, **named)
            trainer = _Trainer(model, self)
            model.fit, model.evaluate, model.predict = trainer.fit, trainer.evaluate, trainer.predict

        keras.Model.compile = compile_model
        try:
            yield self
        finally:
            if own is None:
                del keras.Model.compile
            else:
                keras.Model.compile = own


class _Trainer:
    """The methods of one Keras model."""

    def __init__(self, net, strategy):
        self._net, self._strategy, self._model, self._weights = net, strategy, None, None

    def _current(self):
        """Returns the :class:`.Model` with the present weights of the Keras model."""
        weights = [np.array(one) for one in self._net.get_weights()]
        if self._model is None or not all(map(np.array_equal, weights, self._weights)):
            self._model = from_keras(self._net)
        return self._model

    def _keep(self):
        self._weights = [np.array(one) for one in self._net.get_weights()]

    def _compiled(self):
        """Returns `(arguments of fit, {name in Keras: name here} of the metrics)` of the model's `compile`."""
        settings, several = self._net._compile_config.config, len(self._net.outputs) > 1
        metrics = _metrics_of_outputs(settings.get("metrics")) if several else compiled_metrics(self._net)
        if settings.get("weighted_metrics"):
            raise ArgumentError("`weighted_metrics` is not supported in a strategy's scope; give `metrics`")
        given = {"optimizer": self._net.optimizer, "loss": settings["loss"], "metrics": [*metrics.values()]}
        if settings.get("loss_weights") is not None:
            given["loss_weights"] = settings["loss_weights"]
        for name in ("loss", "loss_weights"):
            if isinstance(given.get(name), dict):
                given[name] = [given[name][one] for one in _output_names(self._net)]
        check_ends(self._net, given["loss"])
        return given, metrics

    def fit(self, x=None, y=None, batch_size=None, epochs=1, verbose="auto", callbacks=None, validation_split=0.0,
            validation_data=None, class_weight=None, sample_weight=None, steps_per_epoch=None, validation_steps=None,
            validation_batch_size=None, **others):  # fmt: skip
        """Trains the model, with the arguments of `keras.Model.fit`. Returns a keras.callbacks.History."""
        import keras

        _check_others(others)
        given, metrics = self._compiled()
        if validation_split:  # Keras holds out the end, before it shuffles
            x, y, sample_weight, validation_data = _split(x, y, sample_weight, validation_split)
        if isinstance(validation_data, (tuple, list)):
            validation_data = _named(self._net, validation_data[0]), *validation_data[1:]
        elif validation_steps is not None and validation_data is not None:
            validation_data = iter(list(islice(validation_data, validation_steps)))
        if validation_data is None or len(self._net.outputs) > 1:
            given["metrics"] = ()
        lines = [print] if verbose in (1, 2, "auto") else []
        model = self._current()
        done = model.fit(
            _named(self._net, x),
            y,
            epochs=epochs,
            cores=self._strategy.cores,
            callbacks=[*(callbacks or []), *lines],
            validation_data=validation_data,
            class_weight=class_weight,
            sample_weight=sample_weight,
            steps_per_epoch=steps_per_epoch,
            **({} if batch_size is None and y is None else {"batch_size": batch_size or 32}),
            **given | (self._strategy.settings or {}),
        )
        self._keep()
        history = keras.callbacks.History()
        history.set_model(self._net)
        history.on_train_begin()
        history.epoch = list(range(len(done.epochs)))
        history.history = self._named_outputs(_renamed(done.history, metrics))
        history.core = done.core
        self._net.history = history
        return history

    def evaluate(self, x=None, y=None, batch_size=None, verbose="auto", return_dict=False, **others):
        """Returns loss and metrics, with the arguments of `keras.Model.evaluate`."""
        _check_others(others)
        given, metrics = self._compiled()
        model = self._current()
        facts = {name: given[name] for name in ("loss", "loss_weights", "metrics") if name in given}
        facts |= {"metrics": ()} if len(self._net.outputs) > 1 else {}
        found = model.evaluate(_named(self._net, x), y, batch_size=batch_size, **facts)
        self._keep()
        if len(self._net.outputs) > 1:
            found = self._named_outputs(found)
            found.pop("accuracy", None)
            found = {name: value for name, value in found.items() if metrics or not name.endswith("_accuracy")}
            found = dict(sorted(found.items(), key=lambda one: (one[0] != "loss", not one[0].endswith("_loss"))))
            return found if return_dict else [*found.values()]
        found = {"loss": found["loss"]} | {name: found[getattr(one, "__name__", one)] for name, one in metrics.items()}
        if return_dict:
            return found
        return [*found.values()] if metrics else found["loss"]

    def _named_outputs(self, figures):
        """Returns figures with Keras' names of the outputs, not those in the ONNX model."""
        names = dict(zip((one.name for one in self._model.outputs), _output_names(self._net)))
        found = {}
        for key, value in figures.items():
            start, rest = ("val_", key[4:]) if key.startswith("val_") else ("", key)
            name, _, what = rest.rpartition("_")
            found[f"{start}{names[name]}_{what}" if name in names else key] = value
        return found

    def predict(self, x, batch_size=None, verbose="auto", **others):
        """Returns the results, with the arguments of `keras.Model.predict`."""
        _check_others(others)
        model = self._current()
        results = model.predict(_named(self._net, x), batch_size=batch_size)
        self._keep()
        if not isinstance(results, dict):
            return results
        values = [*results.values()]
        return dict(zip(self._net.output, values)) if isinstance(self._net.output, dict) else values


def _output_names(net):
    return [one._keras_history.operation.name for one in net.outputs]


def _metrics_of_outputs(given):
    """Returns `{"accuracy": "accuracy"}` if metrics of several outputs, a list or dict, name the accuracy. Raises ArgumentError
    for others."""
    flat = []
    for one in given.values() if isinstance(given, dict) else given or []:
        flat += one if isinstance(one, (list, tuple)) else [one]
    flat = [one for one in flat if one is not None]
    if not all(map(is_accuracy, flat)):
        raise ArgumentError("`metrics` of a model with several outputs are the loss and the accuracy of each; leave others out")
    return {"accuracy": "accuracy"} if flat else {}


def _renamed(history, metrics):
    """Returns the history with Keras' names of the metrics."""
    found = dict(history)
    for start in ("", "val_"):
        accuracy = found.pop(f"{start}accuracy", None)
        found |= {f"{start}{name}": accuracy for name, one in metrics.items() if one == "accuracy" and accuracy}
    names = {f"val_{getattr(one, '__name__', one)}": f"val_{name}" for name, one in metrics.items()}
    return {names.get(name, name): values for name, values in found.items()}


def _check_others(others):
    for name, value in others.items():
        if name == "callbacks" and not value or name in _FIXED and value == _FIXED[name]:
            continue
        remedy = f"leave it out, or give {_FIXED[name]!r}" if name in _FIXED else "leave it out"
        raise ArgumentError(f"`{name}` is not supported in a strategy's scope; {remedy}")


def _split(x, y, weights, share):
    """Returns the first part of the samples, and the last `share` of them as validation data, as Keras does."""
    every = [x] if not isinstance(x, (list, tuple, dict)) else list(x.values()) if isinstance(x, dict) else x
    first = int(len(every[0]) * (1 - share))

    def part(value, which):
        if isinstance(value, dict):
            return {name: one[which] for name, one in value.items()}
        return type(value)(one[which] for one in value) if isinstance(value, (list, tuple)) else value[which]

    parts = x, y, *(() if weights is None else (weights,))
    kept, held = (tuple(part(one, which) for one in parts) for which in (slice(first), slice(first, None)))
    return *kept, *(None,) * (weights is None), held


def _named(net, x):
    """Returns the samples of a model with several inputs as a dict by the names in the ONNX model, which are Keras' own."""
    if not isinstance(x, (list, tuple)) or len(net.inputs) < 2:
        return x
    return {one.name: as_array(value) for one, value in zip(net.inputs, x)}
