"""Training and evaluation of a model."""

import onnx

from ..data.whole_files import write_file
from .arguments import also_named
from .evaluation import evaluation
from .temporary_file import TemporaryFile

__all__ = ["TrainableModel"]


class TrainableModel:
    """The methods of a :class:`.Model` that train, evaluate and save it."""

    def fit(
        self,
        x,
        y,
        *,
        epochs=None,
        steps=None,
        evaluate_every=None,
        batch_size=32,
        validation_split=0.0,
        validation_data=None,
        optimizer="adam",
        learning_rate=None,
        schedule="constant",
        loss="cross_entropy",
        dropout=None,
        callbacks=(),
        cores=1,
        check_steps=0,
        on="model",
        core=None,
        initialize=False,
        seed=1,
        verbose=True,
    ):
        """Trains the model. Returns a :class:`History`.

        The golden model computes every step, and defines its bits. With `check_steps`, a core computes the first steps too, and
        every bit is compared. The trained weights replace the weights of this object and of the PyTorch module or Keras model
        that it was made from. Equal arguments give equal bits on every computer.

        Parameters
        ----------
        x : array
            Samples, as in :meth:`sim.tpu.model.Model.run`. Images (count, 28, 28) fit a model of (1, 28, 28) or of 784 numbers.
            Values are not scaled: give images as the model expects them, such as `images / 255`. For uint8 there is a warning.
        y : array
            Class numbers, (count,) or (count, 1), or one-hot rows, (count, classes). For a model of several positions, such as
            tokens or pixels: class numbers (count, positions) or (count, height, width), where -100 does not count. For the
            loss `mse`: the wanted results, in the shape of the model's output.
        epochs, steps : int or None
            Number of epochs, or of steps. Default: 1 epoch.
        evaluate_every : int or None
            Number of steps between two evaluations, each an entry in the history. Default: an epoch. The last step is always
            followed by one.
        batch_size : int
            Samples per step. The last batch of an epoch is dropped if it is incomplete.
        validation_split : float
            Fraction of the samples, chosen at random by `seed`, on which each epoch is evaluated instead of trained.
        validation_data : (x, y) or None
            Samples and labels on which each epoch is evaluated.
        optimizer : str, Sgd or Adam
            `adam`, `adamw` (weight decay 0.01) or `sgd` (momentum 0.9), or an object such as `tpu.Sgd(momentum=0.5)`.
        learning_rate : float or None
            Default: 0.001 for Adam; 0.1 for SGD, or 0.05 for a CNN.
        schedule : str
            Factor of the learning rate: `constant`; `cosine` (falls to 0) or `cosine:0.1` (to a tenth); `steps:2,4:0.1` (times
            0.1 after epochs 2 and 4); `exponential:0.95` (times 0.95 after each epoch); `exponential:0.96/1000` (times 0.96 over
            1,000 steps); `fifths` (1, 1, .5, .2, .1, each for a fifth of the steps); or a factor for each epoch, such as
            `1,1,.5`. `warmup:50+` before one of them rises over 50 steps first.
        loss : str
            `cross_entropy` of the softmax, `mse`, or Keras' names for them.
        dropout : float or None
            Dropout rate of the hidden dense layers; without such layers, of the inputs of the last layer. Default: the rate in
            the PyTorch module or Keras model, else 0.
        callbacks : callback or list of callbacks
            :class:`Checkpoint`, :class:`EarlyStopping`, :class:`TensorBoard`, and functions. A function is called with the
            statistics of each epoch; if it returns True, training ends. `callbacks=[print]` prints the statistics.
        cores : int
            Number of cores. Each batch is split evenly among them, and a ring of cores adds their gradients.
        check_steps : int or "all"
            Number of steps that a core computes too.
        on : str or Simulator
            Simulator of these steps: `model` executes their instructions; `verilator` and `icarus` simulate the RTL, and take
            longer.
        core : Config, name of a preset, or None for the preset `training`
            Configuration of each core. The options `training` and, for several cores, `ring` are switched on.
        initialize : bool
            Start from new random weights. Default: start from the model's weights.
        seed : int
            Seed of new weights, the order of samples, the validation split and dropout.
        verbose : bool
            Show the progress of a fit of more than two seconds on standard error: a line on a terminal, else a line every ten
            seconds. `callbacks=[print]` prints the statistics of each epoch.

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

        source = self._source
        if dropout is None:
            dropout = source.dropout if source else 0.0
        trained, scales, history = fit(
            self.network,
            x,
            y,
            epochs=epochs,
            steps=steps,
            evaluate_every=evaluate_every,
            batch_size=batch_size,
            validation_split=validation_split,
            validation_data=validation_data,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            loss=loss,
            dropout=dropout,
            callbacks=callbacks,
            cores=cores,
            check_steps=check_steps,
            on=on,
            core=core,
            seed=seed,
            initialized=initialize,
            verbose=verbose,
            check_form=source.check if source else lambda scales: None,
            check_programs=self.check_programs,
        )
        file, network = TemporaryFile(trained, self.network.name), self.network
        shapes = network.origin.fixed if history.own_form else None  # an equivalent graph has fixed shapes
        self._set(file.load(keep_softmax=network.stages[-1].softmax, shapes=shapes), file)
        if source:
            source.store(trained, scales)
        return history

    @also_named("batch", "batch_size")
    def evaluate(self, x, y, on="golden", *, loss="cross_entropy", metrics=(), core=None, batch=None):
        """Computes the loss and the accuracy on labelled samples. Returns `{"loss": float, "accuracy": float}`, and an entry for
        each metric. For the loss `mse`, there is no accuracy.

        Parameters
        ----------
        y : array
            Labels as for :meth:`fit`.
        loss : str
            `cross_entropy` or `mse`, as for :meth:`fit`.
        metrics : sequence of str
            `top-5` (any number), `confusion` (with precision and recall of each class), `perplexity`, and `accuracy`, which is
            always there.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> model, x = tpu.load("d"), np.random.default_rng(1).random((20, 784))
        >>> model.evaluate(x, model.predict(x).argmax(axis=1))["accuracy"]
        1.0
        """
        return evaluation(self.run(x, on, core=core, batch=batch).check(), y, loss, metrics)

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
        write_file(path, onnx.load(self.network.origin.path).SerializeToString(deterministic=True))
