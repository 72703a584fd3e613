"""Training and evaluation of a model."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import onnx

from ..data.whole_files import write_file
from ..frontend.index.pixels import PHASED
from ..frontend.inputs import in_inference_form, in_training_form
from ..frontend.operators.normalization import NORMALIZATIONS
from ..trainer.errors import ArgumentError
from ..trainer.plan import takes
from .arguments import also_named
from .batches import Batches, gathered
from .dropouts import with_values
from .evaluation import evaluation, parse_loss, with_logits
from .fit_arguments import FitArguments
from .keras_objects import loss_name, with_keras_objects
from .temporary_file import TemporaryFile

__all__ = ["TrainableModel", "training_file"]


def training_file(network):
    """Returns the :class:`.TemporaryFile` of a network whose operators are read otherwise for training, or None."""
    model = onnx.load(network.origin.path)
    if not any(node.op_type in (*PHASED, *NORMALIZATIONS, "PRelu", "Sqrt") for node in model.graph.node):
        return None
    return TemporaryFile(in_training_form(model), network.name)


def _by_position(network):
    """Returns a network that computes a vector of classes for each position of the result. A network that is loaded for
    inference may compute several positions of an image together."""
    if network.origin.is_split or network.tensors[network.output].channels in (*network.origin.output.shape, 1):
        return network
    file = training_file(network)
    return file.load(keep_softmax=network.stages[-1].softmax, shapes=network.origin.fixed) if file else network


class TrainableModel:
    """The methods of a :class:`.Model` that train, evaluate and save it."""

    @takes(FitArguments)
    def fit(self, x, y=None, **arguments):
        """Trains the model. Returns a :class:`History`.

        The golden model computes every step, and defines its bits. With `check_steps`, a core computes the first steps too, and
        every bit is compared. The trained weights replace the weights of this object and of the PyTorch module or Keras model
        that it was made from. Equal arguments give equal bits on every computer.

        Parameters
        ----------
        x : array
            Samples, as in :meth:`sim.tpu.model.Model.run`. Images (count, 28, 28) fit a model of (1, 28, 28) or of 784 numbers.
            Values are not scaled: give images as the model expects them, such as `images / 255`. For uint8 there is a warning.
            An array in a file, np.memmap, stays there. Without `y`, an iterable of batches (x, y) or (x, y, sample_weight),
            such as a DataLoader of PyTorch, a tf.data.Dataset or a generator. Each epoch reads it anew, in its order, and the
            size of its first batch is the default of `batch_size`. A list of batches, and an iterator without `steps_per_epoch`,
            is read once instead, and is trained on as an array.
        y : array or None
            Class numbers, (count,) or (count, 1), or one-hot rows, (count, classes). For a model of several positions, such as
            tokens or pixels: class numbers (count, positions) or (count, height, width), where -100 does not count. Also shares
            of the classes with the sum 1, (count, classes) or (count, positions, classes). For the loss
            `binary_crossentropy`: a label from 0 to 1 for each result. For `mse`, `mae` and `huber`: the wanted results, in the
            shape of the model's output. For several outputs: a dict of labels by output, or a list.

        Raises
        ------
        ModelError
            If an operator cannot be trained, or the weights cannot be stored in the PyTorch module or Keras model, or are frozen
            in it.
        ArgumentError, DataError
            If an argument, or an array or file, is invalid.
        CompileError
            If the core is too small for a step.
        TrainingError
            If the loss becomes infinite, NaN, or very large.
        RunError
            If a bit differs between a core and the golden model, or the compiled step is wrong. After an error, the weights are
            as before the call.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> x = np.random.default_rng(1).random((60, 784))
        >>> y = x[:, :10].argmax(axis=1)
        >>> model = tpu.load("d")
        >>> done = model.fit(x, y, epochs=3, validation_split=0.2, check_steps=1, core=tpu.Config(n=4))
        >>> [one.epoch for one in done.epochs], done.core["mismatched_bits"]
        ([1, 2, 3], 0)
        """
        from .fit import fit  # its imports are slow

        source, given = self._source, FitArguments.of(arguments)
        if y is None:
            x = Batches(x, given.steps_per_epoch, given.steps)
            given = given if "batch_size" in arguments else replace(given, batch_size=x.size)
            if x.is_whole:
                x, y, factors = gathered(x)
                given = given if factors is None else replace(given, sample_weight=factors)
        elif given.steps_per_epoch is not None:
            raise ArgumentError("`steps_per_epoch` is for an iterable of batches; an epoch of arrays has all of their samples")
        if given.dropout is None:
            given = replace(given, dropout=source.dropout if source else 0.0)
        network, restore = self.network, lambda: None
        started = masked = None
        if source and source.has_norms:
            source.check()
            restore = partial(source.separate, False)
            source.separate(True)
            started = source.model
        try:
            if given.dropout is None:
                masked = source.masked()
                started = masked.model
            elif len(network.origin.inputs) > 1 or training_file(network):
                started = in_training_form(started or onnx.load(network.origin.path))
            if started is not None:
                started = TemporaryFile(started, network.name)
                network = started.load(keep_softmax=network.stages[-1].softmax, shapes=network.origin.fixed)
            if masked:
                network, rates = masked.network(network)
                given = replace(given, dropout=rates)
            with source.trying() if source else nullcontext():
                given = with_keras_objects(given, source)
                trained, constants, scales, history = fit(network, x, y, given, source, self.check_programs)
        except BaseException:
            restore()
            raise
        trained = with_values(source.model, trained) if masked else in_inference_form(trained)
        if source:
            source.store(trained, scales, constants)
        if source and source.has_norms:
            source.separate(False)
            trained = source.model
        file = TemporaryFile(trained, network.name)
        shapes = network.origin.fixed if history.own_form else None  # an equivalent graph has fixed shapes
        self._set(file.load(keep_softmax=network.stages[-1].softmax, shapes=shapes), file)
        return history

    @also_named("batch", "batch_size")
    def evaluate(self, x, y=None, on="golden", *, loss="cross_entropy", metrics=(), loss_weights=None, core=None, batch=None):
        """Computes the loss and the accuracy on labelled samples. Returns `{"loss": float, "accuracy": float}`, and an entry for
        each metric; with several outputs, of the loss and the accuracy of each. Losses of numbers have no accuracy.

        Parameters
        ----------
        y : array
            Labels as for :meth:`fit`. None: `x` is an iterable of batches.
        loss : str
            As for :meth:`fit`.
        metrics : name, function, or list of both
            `top-5` (any number), `confusion` (with precision and recall of each class), `perplexity`, and `accuracy`, which is
            always there. With other losses than `cross_entropy`: `mse`, `mae`, `huber`. `function(labels, results)` returns a
            number, such as `sklearn.metrics.r2_score`.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> model, x = tpu.load("d"), np.random.default_rng(1).random((20, 784))
        >>> model.evaluate(x, model.predict(x).argmax(axis=1))["accuracy"]
        1.0
        """
        if y is None:
            x, y, _ = gathered(x)
        kind = parse_loss(self.network, loss, loss_weights)
        run = self._run(with_logits(self.network, kind), x, on, core, batch)
        return evaluation(run.check(), _by_position(self.network), y, kind, metrics, loss_name(loss)[1])

    def score(self, x, y):
        """Computes the accuracy on labelled samples, 0 to 1, as scikit-learn's classifiers do.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> model, x = tpu.load("d"), np.random.default_rng(1).random((20, 784))
        >>> model.score(x, model.predict(x).argmax(axis=1))
        1.0
        """
        return self.evaluate(x, y)["accuracy"]

    def save(self, path):
        """Writes the model with its present weights to an ONNX file. The file is replaced as a whole, or not at all.

        Examples
        --------
        >>> import os, tempfile
        >>> from amaranth_tpu import tpu
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = os.path.join(folder, "trained.onnx")
        ...     tpu.load("d").save(path)
        ...     tpu.load(path)
        <Model trained: image (None, 1, 28, 28) -> probabilities (None, 10)>
        """
        write_file(path, self.proto().SerializeToString(deterministic=True))

    def proto(self):
        """Returns the model with its present weights as onnx.ModelProto."""
        return onnx.load(self.network.origin.path)
