"""The check of one random model: the golden model against onnxruntime, and programs against the golden model."""

import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amaranth_tpu.sim.check.against_model import against_model
from amaranth_tpu.sim.check.node_tests import general
from amaranth_tpu.sim.check.overflow import first_not_finite
from amaranth_tpu.sim.compiler.compile import compile_network
from amaranth_tpu.sim.compiler.errors import CompileError
from amaranth_tpu.sim.data.samples import as_samples, joined_inputs
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.golden.network import run_graph
from amaranth_tpu.sim.host.inference import run_samples
from amaranth_tpu.sim.ir.errors import ModelError
from amaranth_tpu.sim.ir.row_norms import with_row_norms

from .cores import drawn_core
from .models import random_model
from .perturbed import first_deviation

__all__ = ["RIGHT", "REFUSED", "WRONG", "TRACEBACK", "Trial", "trial"]

RIGHT, REFUSED, WRONG, TRACEBACK = "right", "refused", "wrong", "traceback"


@dataclass(frozen=True)
class Trial:
    """The outcome of one random model."""

    seed: int
    outcome: str  # one of the four constants above
    reason: str  # One line about the outcome, or the traceback. Empty if everything was right.
    operators: tuple[str, ...]
    programs: int  # programs that were executed
    small: tuple[str, ...]  # reasons why a core could not execute the model
    seconds: float
    content: bytes  # the model as a file


def trial(seed, sizes, most=4, best=0.5):
    """Draws the model of a seed, and checks it. Returns a :class:`Trial`.

    Parameters
    ----------
    seed : int
    sizes : sequence of int
        Rows of the cores to compile it for.
    most : int
        Largest number of blocks.
    best : float
        Share of the programs that the compiler searches with the effort `best`, which takes most of the time.
    """
    started, drawn = time.perf_counter(), random_model(seed, most)
    content, done = drawn.model.SerializeToString(), _Done()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        try:
            reason = _fault(path, drawn, seed, sizes, best, done)
            outcome = WRONG if reason else RIGHT
        except ModelError as error:
            outcome, reason = REFUSED, general(str(error).replace(f"{path}: ", ""))
        except Exception:  # a fault: the reader and the compiler raise no other errors
            outcome, reason = TRACEBACK, traceback.format_exc().replace(str(path), "model.onnx")
    seconds = time.perf_counter() - started
    return Trial(seed, outcome, reason, tuple(drawn.operators), done.programs, tuple(done.small), seconds, content)


class _Done:
    """The number of executed programs, and the reasons of cores that could not execute the model."""

    def __init__(self):
        self.programs, self.small = 0, []


def _fault(path, drawn, seed, sizes, best, done):
    network = load_network(path)
    samples = as_samples(network, joined_inputs(network, drawn.feeds))
    results = run_graph(network, samples.rows)
    found = {output.name: output.of(results) for output in network.origin.outputs}
    if samples.alone:
        found = {name: values[0] for name, values in found.items()}
    fault = first_deviation(drawn.model, drawn.feeds, found)
    if fault:
        return fault
    compared = against_model(network, samples.rows, results)
    if compared.error:
        return f"compared as by `tpu run`: {compared.error}"
    for n in sizes:
        rng = np.random.default_rng([seed, n])  # the core of a size does not depend on other sizes
        config, effort = drawn_core(rng, n), "best" if rng.random() < best else "fast"
        batch = int(rng.integers(1, len(samples.rows) + 1))
        graph = with_row_norms(network, config)
        try:
            program = compile_network(graph, config, batch, effort)
        except CompileError as error:
            done.small.append(general(str(error)))
            continue
        done.programs += 1
        run = run_samples(graph, config, samples.rows, simulator="model", program=program)
        if graph is not network and (error := against_model(graph, samples.rows, run.logits).error):
            return f"normalizations by rows: {error}, {config}"
        if (run.mismatched_bits or run.fault) and not first_not_finite(graph, samples.rows):
            return f"{run.fault or f'{run.mismatched_bits} bits differ'}, batches of {batch}, effort {effort}, {config}"
    return None
