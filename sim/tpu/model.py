"""An ONNX model that can be executed and trained on cores, on models of the core, and on ONNX interpreters."""

from ..check.interpreters import InterpreterError
from ..compiler.compile import check_batch, check_effort, compile_network
from ..golden.network import core_input
from ..host.inference import count_batch, even_batch
from ..host.program_check import checked_program
from ..ir.row_norms import with_row_norms
from ..rtl.host_memory import HOST_LATENCY
from ..trainer.errors import ArgumentError
from .arguments import also_named, check_name
from .cores import config_of, host_of
from .estimate import estimate_of
from .html import LayerTable, Tensors
from .inference_run import InferenceRun, RunError, checked
from .inputs_outputs import inputs_of, outputs_of, samples_of
from .layer_costs import measured_layers
from .layers import layers_of, trace
from .places import RTL, Interpreter, SerialBoard, Simulator, place_of
from .trainable import TrainableModel

__all__ = ["Model"]

_MOST_PROGRAMS = 4  # compiled programs cached per model


class Model(TrainableModel):
    """An ONNX model, created by :func:`load`.

    Arguments of several methods
    ----------------------------
    x : array, or dict of arrays by the names of the inputs
        Finite numbers: samples along the first axis, in the model's shape. For a model with several inputs, an array has the
        values of all inputs in each row, one input after the other.
    on : str, Simulator, SerialBoard or Interpreter
        The backend. Names are `golden`, `model`, `icarus`, `verilator`, `onnxruntime`, `onnx` (:data:`PLACES`). The classes
        accept further settings.
    core : Config, name of a preset, or None for the preset `default`
        Configuration of a simulated core. A board reports its own configuration.
    batch : int or None
        Samples per batch. Default: at most 128, at most 32 for a CNN, and at most the capacity of a board's memory. The default
        is reduced so that all batches are equally full. Keras' name `batch_size` means the same.

    Attributes
    ----------
    network : sim.ir.graph.Graph
    inputs, outputs : tuple of Value
    effort : str
        Effort of the compiler; see :func:`load`.
    check_programs : bool
        Run each new program once on a model of the core, on random samples, before the RTL or a board uses it. Default: True.
        Set it to False to use a program that fails, or to save the time.
    """

    # file: the TemporaryFile of the network, or None; source: the PyTorch module or Keras model that `fit` updates, or None

    def __init__(self, network, effort="best", file=None, source=None):
        check_effort(effort)
        self.effort, self.check_programs, self._source = effort, True, source
        self._set(network, file)

    def _set(self, network, file):
        self.network, self._file = network, file
        self.inputs, self.outputs = inputs_of(network), outputs_of(network)
        self._programs = {}
        self._checked = set()  # backends whose results an interpreter has confirmed
        self._version = _version(network.origin.path)

    def __repr__(self):
        ends = (", ".join(f"{value.name} {value.shape}" for value in values) for values in (self.inputs, self.outputs))
        return f"<Model {self.network.name}: {' -> '.join(ends)}>"

    @property
    def layers(self):
        """Returns the names of the layers, which are the names of the ONNX tensors that they compute.

        Examples
        --------
        >>> from amaranth_tpu import tpu
        >>> len(tpu.load("c").layers)
        5
        """
        return tuple(name for name, _, _ in layers_of(self.network))

    def batch_size(self, count=None):
        """Returns the default batch size for `count` samples: at most 128, or 32 for a CNN. It is reduced so that all batches are
        equally full."""
        size = 32 if self.network.is_convolutional else 128
        return size if count is None else even_batch(count, size)

    @also_named("batch", "batch_size")
    def compile(self, core=None, batch=1, progress=None):
        """Compiles the model for a batch size. Returns a :class:`sim.compiler.program.Program` with memory image, instructions
        (`listing`) and regions.

        A new program is checked: a model of the core runs it on random samples, and each bit must be the golden model's.

        `progress` is called with `(done, total)`, the numbers of schedules that the search has tried and will try; `total` may
        grow. Programs are cached on disk for all processes. Raises CompileError if the core is too small, and RunError if the
        program is wrong.

        Examples
        --------
        >>> from amaranth_tpu import tpu
        >>> program = tpu.load("d").compile(tpu.Config(n=4))
        >>> program.batch, program.listing.split()[-1]
        (1, 'HALT')
        """
        return self._compile(self.network, config_of(core), batch, progress)

    def _compile(self, network, config, batch, progress=None, check=True):
        """Returns the program of the model or of a part of it. Without `check`, a new program is not checked."""
        key = config, batch
        program = self._programs.get(key) if network is self.network else None
        if program is None:
            program = compile_network(with_row_norms(network, config), config, batch, self.effort, progress)
        if check and self.check_programs and not program.checked:
            program = checked_program(with_row_norms(network, config), program)
        if network is self.network:
            self._programs.pop(key, None)
            while len(self._programs) >= _MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
            self._programs[key] = program
        return program

    @also_named("batch", "batch_size")
    def run(self, x, on="golden", *, core=None, batch=None, progress=None):
        """Executes the model on a backend. Returns an :class:`InferenceRun` with `outputs`, `result` (including cycles and
        stalls), `failure` and `compare()`.

        `progress` is called with `(done, total)`: batches, or bytes on the serial line of a board.

        Examples
        --------
        >>> from amaranth_tpu import tpu
        >>> run = tpu.load("d").run([[0.5] * 784], on="model", core="tiny")
        >>> run.result.mismatched_bits, run.failure
        (0, None)
        """
        return self._run(self.network, x, on, core, batch, progress)

    def _run(self, network, x, on, core, batch, progress=None):
        """Executes the model's network, or one with other last functions on a core. An interpreter executes the file."""
        samples, place, outputs = samples_of(network, x), place_of(on), network.origin.outputs
        if isinstance(place, Interpreter):
            network = self.network
            sizes = [len(range(network.output_size)[output.place]) for output in outputs]
            values = place.values(network.origin, samples.rows, [output.value for output in outputs], sizes)
            program = result = None
            found = {output.name: output.shaped(one) for output, one in zip(outputs, values)}
        else:
            program, result = self._compute(network, samples.rows, place, core, batch, progress)
            network = with_row_norms(network, program.config if program else config_of(core))
            found = {output.name: output.of(result.logits) for output in outputs}
        if samples.alone:
            found = {name: values[0, ...] for name, values in found.items()}
        return InferenceRun(network, place, samples.rows, found, result, program)

    def _compute(self, network, rows, place, core, batch, progress=None):
        """Executes a network, or a part of one, on a core or on a model of the core. Returns `(program, result)`."""
        if batch is not None:
            check_batch(batch)
        if isinstance(place, SerialBoard):
            if core is not None:
                raise ArgumentError("a board has its own core; leave `core` out")
            return place.run(network, rows, effort=self.effort, check=self.check_programs, batch=batch, progress=progress)
        batch, in_rtl = batch or self.batch_size(len(rows)), place.name in RTL  # the other models compare all results themselves
        return place.run(
            with_row_norms(network, config_of(core)),
            rows,
            compiled=lambda size: self._compile(network, config_of(core), size, check=in_rtl),
            batch=batch,
            progress=progress,
        )

    @also_named("batch", "batch_size")
    def predict(self, x, on="golden", *, core=None, batch=None, check=True):
        """Computes the outputs of the model: an array, or a dict of arrays by name if there are several outputs. Arrays are
        float32, or int64 for class numbers, and have ONNX's shape for this number of samples.

        The first call on each backend also compares a few samples with an ONNX interpreter, like `tpu run` and :meth:`compare`.
        Later calls skip this comparison. It is also skipped if no interpreter can execute the model.

        Parameters
        ----------
        check : bool
            Compare with an interpreter. Default: True.

        Raises
        ------
        RunError
            If the compiled program, the RTL, the instruction-level model or a board gives other bits than the golden model. If
            the difference to the interpreter is larger than rounding errors explain.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> images = np.random.default_rng(1).random((2, 1, 28, 28), np.float32)
        >>> tpu.load("d").predict(images).argmax(axis=1).shape
        (2,)
        """
        run = self.run(x, on, core=core, batch=batch).check()
        if check and run.result is not None:
            self._check_once(run)
        return run.output

    def _check_once(self, run):
        """Compares the results of a run with an interpreter. Skips the comparison if the backend was confirmed before, or if the
        model's file has changed since loading.

        Raises RunError.
        """
        place = run.place.name if isinstance(run.place, Simulator) else run.place.port
        if place in self._checked or _version(self.network.origin.path) != self._version:
            return
        error = run.compare().error
        if error:
            raise RunError(f"{error}; `check=False` skips this comparison")
        self._checked.add(place)

    @also_named("batch", "batch_size")
    def trace(self, x, on="golden", *, core=None, batch=None):
        """Computes the tensors of all layers. Returns a dict of float32 arrays (count, *shape), by the names of the ONNX tensors.

        A fused layer, such as Conv, BatchNormalization and Relu, has one tensor: its last. The RTL and boards execute the network
        once per layer. ONNX interpreters return only layers that are tensors of the ONNX model.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> model, x = tpu.load("default"), np.zeros((1, 1, 28, 28))
        >>> ours, theirs = model.trace(x), model.trace(x, on="onnx")
        >>> [(name, bool(abs(ours[name] - theirs[name]).max() < 0.1)) for name in model.layers]
        [('hidden_values', True), ('logits', True)]
        """
        samples, place = samples_of(self.network, x), place_of(on)

        def run(part):
            return checked(self._compute(part, samples.rows, place, core, batch)[1]).logits

        found = trace(self.network, samples.rows, place, run)
        return Tensors({name: values[0] for name, values in found.items()} if samples.alone else found)

    @also_named("batch", "batch_size")
    def estimate(self, core=None, batch=1, memory=str(HOST_LATENCY)):
        """Estimates the cost of one batch without a simulation. Returns an :class:`Estimate`: cycles, bus words, bytes of memory,
        layers.

        Parameters
        ----------
        memory : str
            Host memory, as `--memory` of `tpu run`: `LATENCY[:BYTES[:BURST]]` in cycles and bytes per cycle, or a name such as
            `ddr3-800x16@75`. Default: a latency of 32 cycles, and a bus that never waits.

        Examples
        --------
        >>> from amaranth_tpu import tpu
        >>> estimate = tpu.load("default").estimate(core="tiny", batch=4)
        >>> estimate.macs, estimate.cycles == sum(layer.cycles for layer in estimate.layers)
        (406528, True)
        """
        config = config_of(core)
        return estimate_of([self._compile(self.network, config, batch, check=False).with_host(host_of(memory))], config, batch)

    @also_named("batch", "batch_size")
    def profile(self, x, on="verilator", *, core=None, batch=None, progress=None):
        """Measures each layer in the RTL, on the first batch of samples. Returns a list of
        :class:`sim.tpu.layer_costs.LayerCost`: cycles, stalls by reason, utilisation, bus words.

        The program's first layer, its first two layers and so on are executed. `progress` is called with `(done, total)`, the
        numbers of layers. :meth:`estimate` gives the layers without a simulation.

        Parameters
        ----------
        on : str or Simulator
            A simulator of the RTL: `verilator` or `icarus`.

        Examples
        --------
        >>> from amaranth_tpu import tpu
        >>> core = tpu.Config(n=2)
        >>> layers = tpu.load("d").profile([[0.5] * 784], "icarus", core=core)  # doctest: +SKIP
        >>> [(layer.name, layer.cycles) for layer in layers]                    # doctest: +SKIP
        """
        check_name("on", on.name if isinstance(on, Simulator) else on, RTL, ", or a Simulator of such a name")
        samples, place = samples_of(self.network, x), place_of(on)
        size = min(batch or self.batch_size(len(samples.rows)), len(samples.rows))
        rounded = core_input(self.network, samples.rows[:size])

        def measure(part, number, count):
            counters = count_batch(part, rounded, simulator=place.name, memory=place.memory, cells=place.cells)
            if progress:
                progress(number, count)
            return counters

        return LayerTable(measured_layers(self.compile(core, size), measure))

    @also_named("batch", "batch_size")
    def compare(self, x, on="golden", against=None, *, core=None, batch=None, most=8):
        """Executes the model, and compares the results with an ONNX interpreter in binary32 on the same samples.

        Parameters
        ----------
        against : str, Interpreter or None
            `onnxruntime`, or `onnx` for the interpreter in the package `onnx`. Default: onnxruntime if it is installed, else
            `onnx`.
        most : int
            Number of samples to compare, evenly spread over all samples. Fewer are compared if the interpreter is slow.

        Returns
        -------
        sim.check.against_model.ModelComparison
            `largest` and `rms` difference, `top_agreement`, and `error`, which is None if the difference is within rounding
            errors.

        Raises
        ------
        InterpreterError
            If no interpreter is installed, or none can execute the model.

        Examples
        --------
        >>> import numpy as np
        >>> from amaranth_tpu import tpu
        >>> found = tpu.load("d").compare(np.ones((2, 784)), against="onnx")
        >>> found.samples, found.rms < 0.1, found.error
        (2, True, None)
        """
        found = self.run(x, on, core=core, batch=batch).check().compare(against, most)
        if not found.samples:
            raise InterpreterError(found.reason)
        return found


def _version(path):
    """Returns inode, size and modification time of a file. Returns None if the file does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
