"""Keras' own optimizers, losses, metrics and callbacks as arguments of `fit`, where they mean the same here."""

from dataclasses import replace

from ..ir.optimizers import Adam, RmsProp, Sgd
from ..trainer.errors import ArgumentError
from .arguments import framework_of
from .callbacks import EarlyStopping, TensorBoard

__all__ = ["EpochCallbacks", "check_ends", "compiled_metrics", "is_accuracy", "loss_name", "metric_name", "with_keras_objects"]

#: Settings of Keras' optimizers that the core lacks.
_LACKING = ("use_ema", "gradient_accumulation_steps", "amsgrad", "nesterov")
_EPSILON = 1e-5  # largest `epsilon`: a core has a least root of 2^-17 in its place
#: Layers and functions after the last activation that only arrange its results.
_SAME_VALUES = ("Reshape", "Flatten", "Permute", "Transpose", "Squeeze", "ExpandDims", "Identity")
_LOSSES = {
    "SparseCategoricalCrossentropy": "sparse_categorical_crossentropy",
    "CategoricalCrossentropy": "categorical_crossentropy",
    "BinaryCrossentropy": "binary_crossentropy",
    "MeanSquaredError": "mse",
    "MeanAbsoluteError": "mae",
    "Huber": "huber",
}
_METRICS = {
    "Accuracy": "accuracy",
    "SparseCategoricalAccuracy": "accuracy",
    "CategoricalAccuracy": "accuracy",
    "BinaryAccuracy": "accuracy",
    "MeanSquaredError": "mse",
    "MeanAbsoluteError": "mae",
    "SparseTopKCategoricalAccuracy": "top-{k}",
    "TopKCategoricalAccuracy": "top-{k}",
}
#: Methods of Keras' callbacks that `fit` calls, and those that it ignores.
_CALLED = ("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end")
_SILENT = ("ProgbarLogger", "History", "TerminateOnNaN")
#: Callbacks that `fit` has itself in another form.
_INSTEAD = {
    "BackupAndRestore": "tpu.Checkpoint(folder, resume=True)",
    "ReduceLROnPlateau": "`schedule`, such as 'exponential:0.9'",
}


def _is_keras(value):
    return framework_of(value) == "keras"


def _refuse(argument, value, why, remedy):
    raise ArgumentError(f"`{argument}`: {type(value).__name__} of Keras {why}; {remedy}")


def with_keras_objects(given, source):
    """Returns :class:`.FitArguments` with the library's own objects in place of Keras'. Raises ArgumentError for an object whose
    meaning the library does not have. The message is one line with cause and remedy.

    Parameters
    ----------
    given : FitArguments
    source : Source or None
        The Keras model that is trained.
    """
    if _is_keras(given.optimizer):
        given = _with_optimizer(given, source)
    if any(map(_is_keras, parts := _listed(given.loss))):
        net = getattr(source, "object", None)
        if net is not None and len(parts) == len(net.outputs):
            check_ends(net, parts)
        names, smoothings = zip(*map(loss_name, parts))
        if len({*smoothings}) > 1 or smoothings[0] and given.label_smoothing not in (0, smoothings[0]):
            raise ArgumentError("`loss`: the losses have different label smoothing; give one in `label_smoothing`")
        names = dict(zip(given.loss, names)) if isinstance(given.loss, dict) else list(names) if len(names) > 1 else names[0]
        given = replace(given, loss=names, label_smoothing=smoothings[0] or given.label_smoothing)
    callbacks = list(given.callbacks) if isinstance(given.callbacks, (list, tuple)) else [given.callbacks]
    if not any(map(_is_keras, callbacks)):
        return given
    for one in [one for one in callbacks if type(one).__name__ == "LearningRateScheduler"]:
        given = _with_rates(given, one)
        callbacks.remove(one)
    made = [_callback(one) if _is_keras(one) else one for one in callbacks]
    own = [one for one, other in zip(made, callbacks) if one is other and _is_keras(other)]
    made = [one for one in made if one is not None and one not in own]
    return replace(given, callbacks=[*made, EpochCallbacks(own, source, given.epochs)] if own else made)


def _listed(value):
    return list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, (list, tuple)) else [value]


def _with_optimizer(given, source):
    one, settings = given.optimizer, given.optimizer.get_config()
    for name in _LACKING:
        if settings.get(name):
            _refuse("optimizer", one, f"has {name}, which the core lacks", f"leave {name} out")
    if settings.get("clipnorm"):
        _refuse("optimizer", one, "has clipnorm, one norm for each weight", "give global_clipnorm, the norm of all, or clipvalue")
    if settings.get("epsilon", 0) > _EPSILON:
        _refuse("optimizer", one, f"has epsilon={settings['epsilon']:g}, which the core lacks", "leave epsilon out")
    kind, decay = type(one).__name__, settings.get("weight_decay") or 0.0
    weights = getattr(getattr(source, "object", None), "trainable_weights", ()) if decay else ()
    if kept := [weight.path for weight in weights if len(weight.shape) > 1 and not one._use_weight_decay(weight)]:
        _refuse("optimizer", one, f"excludes {kept[0]} from weight decay", "exclude biases alone, which a core never decays")
    if kind in ("Adam", "AdamW"):
        made = Adam(settings["beta_1"], settings["beta_2"], decay)
    elif kind == "RMSprop" and not (settings["momentum"] or settings["centered"]):
        made = RmsProp(second=settings["rho"], weight_decay=decay)
    elif kind == "SGD" and not (decay and settings["momentum"]):
        made = Sgd(settings["momentum"], decay)
    elif kind == "SGD":
        _refuse("optimizer", one, "decays the weights beside the momentum", "give tpu.Sgd(momentum, weight_decay)")
    else:
        _refuse("optimizer", one, "is not the core's", "give Adam, AdamW, SGD, or RMSprop without momentum")
    rate, schedule = settings["learning_rate"], given.schedule
    if isinstance(rate, dict):
        rate, schedule = _schedule(one._learning_rate, rate["class_name"], rate["config"])
    rate = given.learning_rate if given.learning_rate is not None else float(f"{rate:.6g}")  # Keras keeps it in binary32
    made = replace(made, clip_value=settings.get("clipvalue"), clip_norm=settings.get("global_clipnorm"))
    return replace(given, optimizer=made, learning_rate=rate, schedule=schedule)


def _schedule(schedule, kind, settings):
    """Returns the learning rate and the schedule of one of Keras' schedules."""
    if kind == "ExponentialDecay" and not settings["staircase"] and settings["decay_steps"] == int(settings["decay_steps"]):
        return settings["initial_learning_rate"], f"exponential:{float(settings['decay_rate'])!r}/{int(settings['decay_steps'])}"
    return 1.0, lambda step: float(schedule(step))


def _with_rates(given, scheduler):
    """Returns the arguments with the learning rates of a LearningRateScheduler as their schedule."""
    if given.learning_rate is None and (given.optimizer == "sgd" or isinstance(given.optimizer, Sgd)):
        _refuse("callbacks", scheduler, "needs the first learning rate", "give `learning_rate`, or an optimizer of Keras")
    if given.steps is not None:
        _refuse("callbacks", scheduler, "needs the number of epochs", "give `epochs` in place of `steps`")
    rates, rate = [], given.learning_rate or 0.001
    for epoch in range(given.epochs or 1):
        try:
            rate = float(scheduler.schedule(epoch, rate))
        except TypeError:
            rate = float(scheduler.schedule(epoch))
        if not 0 < rate < float("inf"):
            _refuse("callbacks", scheduler, f"gives the learning rate {rate:g}", "give rates above 0")
        rates.append(rate)
    first = given.learning_rate or rates[0]
    return replace(given, learning_rate=first, schedule=",".join(f"{rate / first:.6g}" for rate in rates))


def loss_name(loss):
    """Returns `(name, label smoothing)` of an argument `loss`, which may be an object of Keras."""
    if not _is_keras(loss):
        return loss, 0.0
    settings, name = getattr(loss, "_fn_kwargs", {}) | loss.get_config(), _LOSSES.get(type(loss).__name__)
    if name is None:
        _refuse("loss", loss, "is not the library's", f"give one of {', '.join(_LOSSES)}")
    if settings.get("reduction") not in ("sum_over_batch_size", "mean"):
        _refuse("loss", loss, f"has the reduction {settings.get('reduction')}", "leave `reduction` out")
    if settings.get("axis", -1) != -1:
        _refuse("loss", loss, f"has the axis {settings['axis']}", "leave `axis` out, with the classes along the last axis")
    if settings.get("ignore_class") not in (None, -100):
        _refuse("loss", loss, f"ignores class {settings['ignore_class']}", "give `sample_weight` 0 to what does not count")
    if settings.get("delta", 1) != 1:
        name = f"{name}:{settings['delta']!r}"
    return name, settings.get("label_smoothing") or 0.0


def check_ends(net, losses):
    """Raises ArgumentError if a cross-entropy is of logits and the model ends in probabilities, or the other way round."""
    outputs = net.outputs
    for output, loss in zip(outputs, losses if isinstance(losses, (list, tuple)) else [losses] * len(outputs)):
        name, _ = loss_name(loss)
        if not str(name).endswith("crossentropy"):
            continue
        last = _last_function(output)
        if last is None:
            continue
        is_end = last.lower() in ("softmax", "sigmoid")
        of_logits = not isinstance(loss, str) and loss.get_config().get("from_logits", False)
        if is_end == of_logits:
            has, remedy = ("probabilities", "from_logits=False") if of_logits else ("logits", "from_logits=True")
            raise ArgumentError(f"`loss`: the model ends in {has}; give the loss {remedy}")


def _last_function(output):
    """Returns the name of the last function before an output of Keras, without operations that keep the values. Returns None if
    an object of the user computes it."""
    operation, node, index = output._keras_history
    while True:
        if hasattr(operation, "outputs") and operation.outputs:  # a model as a layer
            operation, node, index = operation.outputs[index]._keras_history
        elif type(operation).__name__ in _SAME_VALUES:
            operation, node, index = operation._inbound_nodes[node].input_tensors[0]._keras_history
        elif type(operation).__name__ == "TimeDistributed":
            operation = operation.layer
        else:
            break
    kind = type(operation)
    if kind.__name__ == "Lambda" or not kind.__module__.startswith("keras."):
        return None
    return getattr(getattr(operation, "activation", None), "__name__", kind.__name__)


def metric_name(metric):
    """Returns the library's name of a metric of Keras. Returns other arguments unchanged."""
    if not _is_keras(metric) or callable(metric) and isinstance(metric, type):
        return metric
    if (kind := type(metric).__name__) not in _METRICS:
        _refuse("metrics", metric, "is not the library's", "give a function of labels and results")
    settings = metric.get_config()
    if settings.get("threshold", 0.5) != 0.5:
        _refuse("metrics", metric, f"has the threshold {settings['threshold']:g}", "give a function of labels and results")
    return _METRICS[kind].format(**settings)


def compiled_metrics(net):
    """Returns the metrics of a Keras model's `compile`, {name in Keras: name or function of the library}."""
    metrics = net._compile_config.config.get("metrics") or [] if getattr(net, "_compile_config", None) else []
    if len(net.outputs) > 1:
        return {}
    names = [one if isinstance(one, str) else getattr(one, "name", getattr(one, "__name__", one)) for one in metrics]
    return {name: "accuracy" if is_accuracy(one) else metric_name(one) for name, one in zip(names, metrics)}


def is_accuracy(metric):
    """Returns True for Keras' names and objects of the accuracy."""
    name = metric_name(metric)
    return isinstance(name, str) and (name.endswith("accuracy") or name == "acc")


def _callback(one):
    """Returns the library's callback in place of one of Keras, the same one if `fit` calls it itself, or None if it has nothing
    to do here."""
    kind = type(one).__name__
    if kind in _SILENT:
        return None
    if kind in _INSTEAD:
        _refuse("callbacks", one, "changes training in its own way", f"give {_INSTEAD[kind]}")
    if kind == "TensorBoard":
        return TensorBoard(one.log_dir)
    if kind == "EarlyStopping" and one.restore_best_weights:
        falls = one.monitor == "val_loss" and one.mode != "max"
        if not falls or one.min_delta or one.baseline is not None or one.start_from_epoch:
            why = "with restore_best_weights has settings other than monitor='val_loss' and patience"
            _refuse("callbacks", one, why, "give tpu.EarlyStopping(patience)")
        return EarlyStopping(max(1, one.patience))  # 0 ends training after an epoch without a lower loss, too
    for name in dir(type(one)):
        if name.startswith("on_") and name not in _CALLED and _is_own(one, name):
            _refuse("callbacks", one, f"has {name}, which fit does not call", "do its work in on_epoch_end")
    return one


def _is_own(callback, name):
    """Returns True if a callback has a method of its own, not the empty one."""
    import keras

    empty = getattr(keras.callbacks.Callback, name, None)
    method = getattr(callback, name)
    return getattr(method, "__func__", method) is not empty and getattr(callback, "save_freq", None) != "epoch"


class EpochCallbacks:
    """Keras' callbacks, called as a function of each epoch's statistics.

    Parameters
    ----------
    callbacks : list of keras.callbacks.Callback
    source : Source or None
        The Keras model, with the epoch's weights when the callbacks are called.
    epochs : int or None
    """

    def __init__(self, callbacks, source, epochs):
        self._callbacks, self._model = callbacks, getattr(source, "object", None)
        if self._model is None:
            raise ArgumentError("`callbacks` of Keras need a model of tpu.from_keras; give functions of an epoch's statistics")
        self._model.stop_training, self._epoch = False, 0
        metrics = reversed(compiled_metrics(self._model).items())
        self._names = {getattr(one, "__name__", one): name for name, one in metrics}  # by the library's name
        self._accuracy = self._names.get("accuracy", "accuracy")
        for one in callbacks:
            one.set_params({"epochs": epochs or 1, "steps": None, "verbose": 0})
            one.set_model(self._model)
        self._each("on_train_begin")
        self._each("on_epoch_begin", 0)

    def _each(self, name, *given):
        for one in self._callbacks:
            getattr(one, name)(*given, {} if name != "on_epoch_end" else self._logs)

    def __call__(self, figures):
        """Calls the callbacks after an epoch. Returns True if one ends training."""
        names = {"loss": figures.loss, self._accuracy: figures.training_accuracy, "learning_rate": figures.rate}
        names |= {"val_loss": figures.measured_loss, f"val_{self._accuracy}": figures.accuracy}
        names |= {f"val_{self._names.get(name, name)}": value for name, value in figures.metrics.items()}
        self._logs = {name: value for name, value in names.items() if value is not None}
        self._epoch = max(self._epoch, figures.epoch - 1)  # of a run that resumes
        self._each("on_epoch_end", self._epoch)
        self._epoch += 1
        if not self._model.stop_training:
            self._each("on_epoch_begin", self._epoch)
        return bool(self._model.stop_training)

    def finish(self):
        """Calls the callbacks after training."""
        self._each("on_train_end")
