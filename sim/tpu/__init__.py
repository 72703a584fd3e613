"""The Python API: ONNX models with numpy arrays on cores, on models of the core, and on ONNX interpreters.

A loaded model runs on any backend, which is selected by name. Arrays have the shapes of the ONNX model. Inputs, outputs and
layers have the names in the file.

>>> import numpy as np
>>> from amaranth_tpu import tpu
>>> model = tpu.load("d")                                        # or any ONNX file; tpu.from_torch(...); tpu.from_keras(...)
>>> x = np.random.default_rng(1).random((60, 1, 28, 28), np.float32)
>>> y = model.predict(x)                                         # on the golden model, which defines every bit
>>> same = model.predict(x, on="model", core=tpu.Config(n=4))    # "icarus", "verilator": the RTL; tpu.SerialBoard("/dev/ttyUSB0")
>>> y.shape, bool((y == same).all())
((60, 10), True)
>>> model.compare(x).error is None                               # against onnxruntime, or the interpreter of the package `onnx`
True

Training takes class numbers or one-hot rows. The golden model computes each step; a core repeats the first ones, bit by bit:

>>> labels = x[:, 0, 0, :10].argmax(axis=1)
>>> done = model.fit(x, labels, epochs=9, batch_size=20, initialize=True, check_steps=1, core=tpu.Config(n=4))
>>> done.history["loss"][0] > done.history["loss"][-1], done.core["mismatched_bits"]
(True, 0)
>>> sorted(model.evaluate(x, labels, on="onnx"))                 # the trained model; model.save("trained.onnx") writes it
['accuracy', 'loss']

Costs are known before a simulation, and measured by one:

>>> estimate = model.estimate(tpu.Config(n=4), batch=3)
>>> estimate.cycles > estimate.bound > 0
True
>>> {name: values.shape for name, values in model.trace(x).items()}
{'dense1_values': (60, 10)}

Errors are exceptions with a one-line message: ModelError (the file), DataError (the arrays), ArgumentError (other arguments),
ConfigError and CompileError (the core), TrainingError (training diverges), RunError (a failed check of results), InterpreterError
(an ONNX interpreter), BoardError and LinkError (a board).
"""

from amaranth_tpu.hw.config import Config, ConfigError, from_preset

from ..check.interpreters import InterpreterError
from ..compiler.program import CompileError
from ..data.digits import DataError
from ..host.board import BoardError
from ..host.serial_link import LinkError
from ..ir.errors import ModelError
from ..ir.optimizers import Adam, Sgd
from ..trainer.errors import ArgumentError, TrainingError
from .callbacks import Checkpoint, EarlyStopping, TensorBoard
from .estimate import Estimate
from .history import History
from .keras_models import from_keras
from .load import load
from .model import Model
from .places import PLACES, Interpreter, SerialBoard, Simulator
from .run import InferenceRun, RunError
from .torch_modules import as_torch, from_torch
from .values import Value

__all__ = [
    "load",
    "from_torch",
    "from_keras",
    "as_torch",
    "Model",
    "Sgd",
    "Adam",
    "Checkpoint",
    "EarlyStopping",
    "TensorBoard",
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
