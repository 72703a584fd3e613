"""The Python API: ONNX models with numpy arrays on cores, on models of the core, and on ONNX interpreters.

A loaded model runs on any backend, which is selected by name. Arrays have the shapes of the ONNX model. Inputs, outputs and
layers have the names in the file.

>>> import numpy as np
>>> from amaranth_tpu.sim import tpu
>>> model = tpu.load("d")                                        # or the path of any ONNX file
>>> x = np.random.default_rng(1).random((3, 1, 28, 28), np.float32)
>>> y = model.predict(x)                                         # on the golden model, which defines every bit
>>> same = model.predict(x, on="model", core=tpu.Config(n=4))    # "icarus", "verilator": the RTL; tpu.SerialBoard("/dev/ttyUSB0")
>>> y.shape, bool((y == same).all())
((3, 10), True)
>>> {name: values.shape for name, values in model.trace(x).items()}
{'dense1_values': (3, 10)}
>>> estimate = model.estimate(tpu.Config(n=4), batch=3)
>>> estimate.cycles > estimate.bound > 0
True
>>> model.compare(x).error is None                               # against onnxruntime, or the interpreter of the package `onnx`
True

Errors are exceptions with a one-line message: ModelError (the file), DataError (the arrays), ConfigError and CompileError (the
core), RunError (a failed check of results), InterpreterError (an ONNX interpreter), BoardError and LinkError (a board).
"""

from amaranth_tpu.hw.config import Config, ConfigError, from_preset

from ..check.interpreters import InterpreterError
from ..compiler.program import CompileError
from ..data.digits import DataError
from ..host.board import BoardError
from ..host.serial_link import LinkError
from ..ir.errors import ModelError
from .estimate import Estimate
from .model import Model, load
from .places import PLACES, Interpreter, SerialBoard, Simulator
from .run import InferenceRun, RunError
from .values import Value

__all__ = [
    "load",
    "Model",
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
    "ConfigError",
    "CompileError",
    "RunError",
    "InterpreterError",
    "BoardError",
    "LinkError",
]
