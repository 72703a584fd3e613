"""The library: an ONNX model with numpy arrays on the core, on every model of it, and on ONNX interpreters.

A model is loaded once, and then computes on whatever is named; arrays have its own shapes, and its inputs, outputs and layers
their names in the file.

>>> import numpy as np
>>> from amaranth_tpu.sim import tpu
>>> model = tpu.load("d")                                        # or the path of any ONNX file
>>> x = np.random.default_rng(1).random((3, 1, 28, 28), np.float32)
>>> y = model.predict(x)                                         # by the golden model, which defines every bit
>>> same = model.predict(x, on="model", core=tpu.Config(n=4))    # "icarus", "verilator": the RTL; tpu.SerialBoard("/dev/ttyUSB0")
>>> y.shape, bool((y == same).all())
((3, 10), True)
>>> {name: values.shape for name, values in model.trace(x).items()}
{'dense1_values': (3, 10)}
>>> estimate = model.estimate(tpu.Config(n=4), batch=3)
>>> estimate.cycles > estimate.bound > 0
True
>>> model.compare(x).error is None                               # with onnxruntime, or the interpreter of the package `onnx`
True

What can go wrong raises an exception of one line: ModelError (the file), DataError (the arrays), ConfigError and CompileError
(the core), RunError (a run), InterpreterError (an ONNX interpreter), BoardError and LinkError (a board).
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
