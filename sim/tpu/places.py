"""Backends of a model: golden model, instruction-level model, RTL in simulators, boards, ONNX interpreters."""

from dataclasses import dataclass, field

import numpy as np

from ..check import interpreters
from ..check.interpreters import values_of
from ..golden.network import core_input
from ..host.batch_groups import run_in_parts
from ..host.board import run_on_board
from ..host.inference import SIMULATORS, run_samples
from ..host.spread import in_turn
from ..rtl.native_cells import CELLS
from ..trainer.errors import ArgumentError
from .arguments import check_name

__all__ = ["PLACES", "Simulator", "SerialBoard", "Interpreter", "place_of", "interpreter_of"]

#: Names of the backends.
PLACES = (*SIMULATORS, "onnxruntime", "onnx")
RTL = ("verilator", "icarus")  # simulators of the RTL


@dataclass(frozen=True)
class Simulator:
    """A backend that simulates a core.

    Parameters
    ----------
    name : str
        `golden` (numpy alone, the definition of every bit), `model` (instruction by instruction), or a simulator of the RTL:
        `icarus` or `verilator`.
    memory : dict
        Settings of the simulated host memory: `latency` in cycles; `pause_percent` and `pause_seed` for stalls on the bus.
    waves : bool or str
        Record a waveform of the RTL: True, or the format `fst` or `vcd`.
    probes : sequence of sim.rtl.probes.Probe
        Signals of the RTL to record in each cycle. The recordings are in `seen` of the result.
    checkpoint : path or None
        Folder in which progress is saved. A later call resumes from it, with the same statistics as one uninterrupted call.
    spread : callable or None
        Executor for groups of batches: None for this process, or a :class:`sim.host.spread.Cluster`.
    cells : str
        `rtl`, or `native` for cells computed by this machine's floating-point unit. These have the same bits and cycles, but need
        `verilator`.

    Examples
    --------
    >>> from amaranth_tpu import tpu
    >>> tpu.load("d").predict([[0] * 784], on=tpu.Simulator("golden")).shape
    (1, 10)
    """

    name: str
    memory: dict = field(default_factory=dict)
    waves: bool | str = False
    probes: tuple = ()
    checkpoint: object = None
    spread: object = None
    cells: str = "rtl"

    def __post_init__(self):
        if self.cells not in CELLS or self.cells == "native" and self.name != "verilator":
            raise ArgumentError(
                f"`cells` must be rtl, or native with the simulator verilator, not {self.cells!r} with {self.name}"
            )
        if self.checkpoint and (self.name == "golden" or self.waves or self.probes or self.memory.get("pause_percent")):
            raise ArgumentError(
                "a checkpoint needs a simulator other than golden, without waves, probes or pauses of the bus; leave these out"
            )

    def run(self, network, rows, *, compiled, batch, progress=None):
        """Executes a network on float32 samples (count, values). Returns `(program or None, result)`. `compiled(batch)` returns
        the program for a batch size."""
        program = None if self.name == "golden" else compiled(min(batch, len(rows)))
        if self.checkpoint:
            options = {"simulator": self.name, "memory": self.memory, "cells": self.cells, "folder": self.checkpoint}
            return program, run_in_parts(network, program, rows, spread=self.spread or in_turn, progress=progress, **options)
        return program, run_samples(
            network,
            program and program.config,
            rows,
            simulator=self.name,
            cells=self.cells,
            program=program,
            memory=self.memory,
            waves=self.waves,
            progress=progress,
            probes=self.probes,
        )


@dataclass(frozen=True)
class SerialBoard:
    """A backend that uses a core on an FPGA board with a serial line. The board reports its configuration.

    Parameters
    ----------
    port : str
    baud : int
        Bits per second.

    Examples
    --------
    >>> from amaranth_tpu import tpu
    >>> tpu.SerialBoard("/dev/ttyUSB0").baud
    3000000
    """

    port: str
    baud: int = 3_000_000

    def run(self, network, rows, *, effort, batch, check=True, progress=None):
        """Compiles a network with `effort`, checks the program with `check`, and executes it on samples like :class:`Simulator`.
        With `batch` None, batches are as large as the board's memory permits."""
        return run_on_board(
            network,
            core_input(network, rows),
            port=self.port,
            baud=self.baud,
            batch=batch,
            effort=effort,
            check=check,
            progress=progress or (lambda done, total: None),
        )


@dataclass(frozen=True)
class Interpreter:
    """A backend that executes the same ONNX file with an interpreter, in binary32.

    Parameters
    ----------
    name : str
        `onnxruntime`, or `onnx` for the interpreter in the package `onnx`.
    providers : tuple of str, or None
        Execution providers of onnxruntime in order of preference, such as `CUDAExecutionProvider`. None: all available providers.

    Examples
    --------
    >>> from amaranth_tpu import tpu
    >>> tpu.load("d").predict([[0] * 784], on=tpu.Interpreter("onnx")).shape
    (1, 10)
    """

    name: str = "onnxruntime"
    providers: tuple[str, ...] | None = None

    def make(self, path, names):
        """Creates an interpreter session for the named tensors of a model, as :func:`sim.check.interpreters.onnxruntime_of`
        does."""
        if self.name == "onnx":
            return interpreters.onnx_reference(path, names)
        return interpreters.onnxruntime_of(path, names, self.providers, optimized=True)

    def values(self, origin, rows, names, sizes):
        """Computes the named tensors of the model, each float32 (count, size), for float32 samples (count, values)."""
        found = values_of(self.make(origin.path, list(names)), origin, rows, sizes)
        return [np.asarray(values, np.float32) for values in found]


def place_of(on):
    """Returns the backend with this name. A backend object is returned unchanged. Raises ArgumentError for other arguments."""
    if isinstance(on, (Simulator, SerialBoard, Interpreter)):
        place = on
    else:
        check_name("on", on, PLACES, ", or an object of Simulator, SerialBoard or Interpreter")
        place = Simulator(on) if on in SIMULATORS else Interpreter(on)
    known = {Simulator: SIMULATORS, Interpreter: PLACES[len(SIMULATORS) :]}.get(type(place))
    if known:
        check_name(f"{type(place).__name__}.name", place.name, known)
    return place


def interpreter_of(against):
    """Returns the :class:`Interpreter` with this name. An Interpreter is returned unchanged. Raises ArgumentError for other
    arguments."""
    if not isinstance(against, Interpreter):
        check_name("against", against, PLACES[len(SIMULATORS) :], ", or an Interpreter")
    return place_of(against)
