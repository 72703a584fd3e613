"""What a model can compute on: the golden model, the instruction-level one, the RTL in simulators, boards, ONNX interpreters."""

from dataclasses import dataclass, field

import numpy as np

from ..check import interpreters
from ..check.interpreters import values_of
from ..golden.arithmetic import round_bfloat16
from ..host.batch_groups import run_in_parts
from ..host.board import run_on_board
from ..host.inference import SIMULATORS, run_samples
from ..host.spread import in_turn

__all__ = ["PLACES", "Simulator", "SerialBoard", "Interpreter", "place_of", "interpreter_of"]

#: Names that stand for places.
PLACES = (*SIMULATORS, "onnxruntime", "onnx")


@dataclass(frozen=True)
class Simulator:
    """A core in simulation.

    Parameters
    ----------
    name : str
        `golden` (numpy alone, the definition of every bit), `model` (instruction by instruction), `icarus` or `verilator`
        (the RTL).
    memory : dict
        Of the RTL's host memory: `latency` in cycles, `pause_percent` and `pause_seed` of pauses on the bus.
    waves : bool or str
        Whether the RTL's run leaves a waveform, or of which kind, `fst` or `vcd`.
    probes : sequence of sim.rtl.probes.Probe
        What the result's `seen` tells of the RTL, cycle by cycle.
    checkpoint : path or None
        Folder for what is done, part by part: a run that was ended goes on from there, with the figures of one that was not.
    spread : callable or None
        Who does the parts: None, this process, or a :class:`sim.host.spread.Cluster`.

    Examples
    --------
    >>> from amaranth_tpu.sim import tpu
    >>> tpu.load("d").predict([[0] * 784], on=tpu.Simulator("golden")).shape
    (1, 10)
    """

    name: str
    memory: dict = field(default_factory=dict)
    waves: bool | str = False
    probes: tuple = ()
    checkpoint: object = None
    spread: object = None

    def __post_init__(self):
        if self.checkpoint and (self.name == "golden" or self.waves or self.probes or self.memory.get("pause_percent")):
            raise ValueError("a checkpoint is of runs of a core's batches, without waves, probes, or pauses of the bus")

    def run(self, network, rows, *, compiled, batch, progress=None):
        """`(program or None, result)` of float32 samples (count, values); `compiled(batch)` gives the program."""
        program = None if self.name == "golden" else compiled(min(batch, len(rows)))
        if self.checkpoint:
            options = {"simulator": self.name, "memory": self.memory, "folder": self.checkpoint, "progress": progress}
            return program, run_in_parts(network, program, rows, spread=self.spread or in_turn, **options)
        return program, run_samples(
            network,
            program and program.config,
            rows,
            simulator=self.name,
            program=program,
            memory=self.memory,
            waves=self.waves,
            progress=progress,
            probes=self.probes,
        )


@dataclass(frozen=True)
class SerialBoard:
    """A core on an FPGA, behind a serial line; what its sizes are, it says itself.

    Parameters
    ----------
    port : str
    baud : int
        Bits a second.

    Examples
    --------
    >>> from amaranth_tpu.sim import tpu
    >>> tpu.SerialBoard("/dev/ttyUSB0").baud
    3000000
    """

    port: str
    baud: int = 3_000_000

    def run(self, network, rows, *, effort, batch, progress=None):
        """As of :class:`Simulator`, but compiles the program with this effort; `batch` None: what there is memory for."""
        return run_on_board(
            network,
            round_bfloat16(rows),
            port=self.port,
            baud=self.baud,
            batch=batch,
            effort=effort,
            progress=progress or (lambda done, total: None),
        )


@dataclass(frozen=True)
class Interpreter:
    """An ONNX interpreter, for the same file in binary32 on whatever it runs on.

    Parameters
    ----------
    name : str
        `onnxruntime`, or `onnx` for the one in the package `onnx`.
    providers : tuple of str, or None
        Execution providers of onnxruntime, the best first, such as `CUDAExecutionProvider`; None: all that it has.

    Examples
    --------
    >>> from amaranth_tpu.sim import tpu
    >>> tpu.load("d").predict([[0] * 784], on=tpu.Interpreter("onnx")).shape
    (1, 10)
    """

    name: str = "onnxruntime"
    providers: tuple[str, ...] | None = None

    def make(self, path, names):
        """See :func:`sim.check.interpreters.onnxruntime_of`."""
        if self.name == "onnx":
            return interpreters.onnx_reference(path, names)
        return interpreters.onnxruntime_of(path, names, self.providers, optimized=True)

    def values(self, origin, rows, names, sizes):
        """Values of the model by their names, each float32 (count, size), for float32 samples (count, values)."""
        found = values_of(self.make(origin.path, list(names)), origin, rows, sizes)
        return [np.asarray(values, np.float32) for values in found]


def place_of(on):
    """The place that a name stands for, or the place itself. Raises ValueError."""
    if isinstance(on, (Simulator, SerialBoard, Interpreter)):
        place = on
    elif on in PLACES:
        place = Simulator(on) if on in SIMULATORS else Interpreter(on)
    else:
        raise ValueError(f"on must be one of {', '.join(PLACES)}, or a Board, not {on!r}")
    known = {Simulator: SIMULATORS, Interpreter: PLACES[len(SIMULATORS) :]}.get(type(place))
    if known and place.name not in known:
        raise ValueError(f"{type(place).__name__} must be one of {', '.join(known)}, not {place.name!r}")
    return place


def interpreter_of(against):
    """The same, of what a run is compared with. Raises ValueError."""
    names = PLACES[len(SIMULATORS) :]
    if against not in names and not isinstance(against, Interpreter):
        raise ValueError(f"against must be one of {', '.join(names)}, or an Interpreter, not {against!r}")
    return place_of(against)
