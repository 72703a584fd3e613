"""The Python API: ONNX models with numpy arrays on cores, on models of the core, and on ONNX interpreters.

Load a file, or take a model from a framework::

    model = tpu.load("model.onnx")                           # also an onnx.ModelProto, or bytes of a file
    model = tpu.from_keras(keras_model)
    model = tpu.from_torch(module, torch.zeros(1, 3, 9, 9))  # an example of the module's input

Train it. The golden model computes each step; a core repeats the first ones, and every bit is compared::

    history = model.fit(
        x, y, epochs=5, batch_size=32, optimizer="adam", validation_split=0.1, check_steps=2,
        callbacks=[print, tpu.EarlyStopping(patience=3), tpu.Checkpoint("run"), tpu.TensorBoard("logs")],
    )
    history.history["val_accuracy"], history.core["mismatched_bits"]
    model.evaluate(x_test, y_test)                           # keras_model or module has the trained weights, too
    model.save("trained.onnx")

Keras' own script runs, too, with its strategy replaced: a model compiled in the scope trains on cores (:class:`Strategy`)::

    with tpu.Strategy(cores=8).scope():
        keras_model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    log = keras.callbacks.CSVLogger("log.csv")
    keras_model.fit(x, y, epochs=5, batch_size=128, validation_split=0.1, callbacks=[log])

With scikit-learn, `tpu.Classifier` and `tpu.Regressor` are its estimators, for pipelines and searches::

    GridSearchCV(tpu.Classifier((32,)), {"learning_rate": [0.01, 0.001]}).fit(x, y)

Run it on any backend, which is selected by name. Arrays have the shapes of the model::

    model.predict(x)                                         # on the golden model, which defines every bit
    model.predict(x, on="onnxruntime")                       # on the host's processor, in binary32
    model.predict(x, on="model", core=tpu.Config(n=4))       # instruction by instruction
    model.predict(x, on="verilator", core=tpu.Config(n=4))   # on a simulated core; also "icarus"
    model.predict(x, on=tpu.SerialBoard("/dev/ttyUSB0"))     # on a board

`estimate` gives cycles without a simulation, and `profile` measures them for each layer. `trace` returns the tensors of all
layers. `compare` checks results against an ONNX interpreter. All are methods of :class:`Model`. `help(tpu.Model.fit)` lists the
arguments of `fit`.

>>> import numpy as np
>>> from amaranth_tpu import tpu
>>> model, x = tpu.load("d"), np.random.default_rng(1).random((60, 1, 28, 28), np.float32)
>>> labels = x[:, 0, 0, :10].argmax(axis=1)
>>> done = model.fit(x, labels, epochs=9, batch_size=20, initialize=True, check_steps=1, core=tpu.Config(n=4))
>>> done.history["loss"][0] > done.history["loss"][-1], done.core["mismatched_bits"]
(True, 0)
>>> y, same = model.predict(x), model.predict(x, on="model", core=tpu.Config(n=4))
>>> y.shape, bool((y == same).all()), model.compare(x).error is None
((60, 10), True, True)
>>> estimate = model.estimate(tpu.Config(n=4), batch=3)
>>> estimate.cycles > estimate.bound > 0
True

Errors are exceptions with a one-line message: ModelError (the file), DataError (the arrays), ArgumentError (other arguments),
ConfigError and CompileError (the core), TrainingError (training diverges), RunError (a failed check of results), InterpreterError
(an ONNX interpreter), BoardError and LinkError (a board).
"""

from amaranth_tpu.hw.config import Config, ConfigError, from_preset

from ..check.interpreters import InterpreterError
from ..compiler.errors import CompileError
from ..data.digits import DataError
from ..host.board import BoardError
from ..host.serial_link import LinkError
from ..ir.errors import ModelError
from ..ir.optimizers import Adam, RmsProp, Sgd
from ..trainer.errors import ArgumentError, TrainingError
from .callbacks import Checkpoint, EarlyStopping, TensorBoard
from .divided import DividedModel
from .divided_run import DividedRun
from .estimate import Estimate
from .history import History
from .inference_run import InferenceRun, RunError
from .inputs_outputs import Value
from .keras_models import from_keras
from .keras_strategy import Strategy
from .load import load
from .model import Model
from .places import PLACES, Interpreter, SerialBoard, Simulator
from .torch_modules import as_torch, from_torch

__all__ = [
    "load",
    "from_torch",
    "from_keras",
    "as_torch",
    "Model",
    "DividedModel",
    "DividedRun",
    "Sgd",
    "Adam",
    "RmsProp",
    "Checkpoint",
    "EarlyStopping",
    "TensorBoard",
    "Strategy",
    "History",
    "Value",
    "InferenceRun",
    "Estimate",
    "PLACES",
    "Simulator",
    "SerialBoard",
    "Interpreter",
    "Config",
    "from_preset",
    "ModelError",
    "DataError",
    "ArgumentError",
    "ConfigError",
    "CompileError",
    "TrainingError",
    "RunError",
    "InterpreterError",
    "BoardError",
    "LinkError",
]

#: Estimators of scikit-learn, which is imported when one is used.
ESTIMATORS = ("Classifier", "Regressor")


def __getattr__(name):
    if name not in ESTIMATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import estimators
    except ImportError as error:
        raise ImportError(f"tpu.{name} needs scikit-learn 1.6 or later ({error}): pip install scikit-learn") from None
    return getattr(estimators, name)
