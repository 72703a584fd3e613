"""Runs of cocotb benches in a process of their own, on the build of a simulation."""

import contextlib
import json
import os
import random
import shutil
import tempfile
import xml.etree.ElementTree
from pathlib import Path

from amaranth_tpu.hw.tools.process import build_directory, tail

from .cocotb_runners import cocotb_runners, own_environment
from .wave_view import gtkwave_save, surfer_commands

__all__ = ["SimulationError", "run_bench"]

#: Files in which pytest rewrites assertions, to show the values of a failed assertion. Default: none, because rewriting every
#: imported module takes two seconds per simulation. To see the values in a bench, set this variable to `bench_*.py`.
_REWRITTEN = "COCOTB_REWRITE_ASSERTION_FILES"


class SimulationError(RuntimeError):
    """An error that ends a simulation without a result."""


def run_bench(
    simulation,
    module,
    *,
    testcase=None,
    arguments=None,
    plusargs=None,
    seed=None,
    timeout=600,
    progress=None,
    on_cycles=None,
    directory=None,
):
    """Runs a cocotb bench in a separate process, and returns the bench's report (:func:`sim.rtl.bench_side.report`).

    Parameters
    ----------
    module : str
        Python module of the bench.
    testcase : str
        Name of one cocotb test. Default: all tests of the module.
    arguments : dict
        Arguments for the bench, as JSON values. The bench gets them from :func:`sim.rtl.bench_side.arguments`.
    plusargs : dict
        Plusargs by name. Paths are made relative to the folder of the simulation, since Icarus cannot open names with
        non-ASCII letters.
    seed : int
        cocotb's random seed. Default: random; the message of a failure names it.
    timeout : float
        Time limit of the bench, in seconds. It starts again when the bench calls :func:`sim.rtl.bench_side.tick`.
    progress : callable
        Called with `(done, total)` when the bench calls :func:`sim.rtl.bench_side.tick`.
    on_cycles : callable
        Called with `(done, cycles, seconds)` then, if the bench counts the simulated cycles.
    directory : path
        Folder for the files of the simulation. Default: a temporary folder, deleted at the end unless it has a trace.

    Returns
    -------
    dict
        The bench's report. If there is a trace, `waves` is its path.
    """
    place = simulation.build()
    seed = random.getrandbits(31) if seed is None else seed
    run = _run_folder(module, directory)
    (run / "arguments.json").write_text(json.dumps(arguments or {}))
    try:
        problem, trace = _run_in(simulation, run, place, module, testcase, plusargs or {}, seed, timeout, progress, on_cycles)
    except KeyboardInterrupt:
        if directory is None:
            shutil.rmtree(run, ignore_errors=True)
        raise
    if problem:
        raise SimulationError(
            f"{module} under {simulation.simulator}, seed {seed}: {problem} (log: {run / 'run.log'})\n" + tail(run / "run.log")
        )
    result = json.loads((run / "report.json").read_text()) if (run / "report.json").exists() else {}
    if simulation.waves:
        _check_space(trace)
        result["waves"] = str(trace)
        if simulation.view:
            trace.with_suffix(".gtkw").write_text(gtkwave_save(simulation.view.groups, trace))
            trace.with_suffix(".sucl").write_text(surfer_commands(simulation.view.groups))
    elif directory is None:
        shutil.rmtree(run, ignore_errors=True)
    return result


def _run_in(simulation, run, place, module, testcase, plusargs, seed, timeout, progress, on_cycles):
    """Runs the simulator. Returns `(problem, trace)`: the text of the problem, empty after success, and the path of the trace
    or None."""

    seen = ""

    def watch():
        """Reports progress. Returns True if the bench has made progress since the last call."""
        nonlocal seen
        before = seen
        with contextlib.suppress(OSError, ValueError):
            seen = (run / "progress").read_text()
            done, total, cycles, seconds = seen.split()
            if progress:
                progress(int(done), int(total))
            if on_cycles and seen != before:
                on_cycles(int(done), int(cycles), float(seconds))
        return seen != before

    runner = cocotb_runners()[simulation.simulator]()
    runner.time_limit, runner.log_path = timeout, run / "run.log"
    runner.watch = watch
    runner.trace_name = f"waves.{simulation.trace_kind}" if simulation.waves else None
    trace = run / (runner.trace_name or "waves")
    words = [f"+{name}={_relative(value, run)}" for name, value in plusargs.items()]
    if simulation.waves and simulation.simulator == "icarus":
        words.append(f"+dumpfile_path={runner.trace_name}")
    results, rewritten = run / "results.xml", os.environ.get(_REWRITTEN, "")
    with own_environment():
        runner.test(
            test_module=module,
            hdl_toplevel=simulation.top,
            hdl_toplevel_lang="verilog",
            testcase=testcase,
            build_dir=place,
            test_dir=run,
            waves=bool(simulation.waves),
            plusargs=words,
            seed=seed,
            extra_env={"TPU_RUN": str(run), _REWRITTEN: rewritten},
            results_xml=str(results),
        )
    try:
        status = runner.perform()
    except TimeoutError as error:
        raise SimulationError(f"{module}: {error} (log: {run / 'run.log'})") from None
    ended = f"the simulator ended with status {status}"
    return _failures(results, ended) or (ended if status else ""), trace


def _relative(value, folder):
    """Returns a path relative to `folder`. Any other value is returned unchanged."""
    return os.path.relpath(value, folder) if isinstance(value, Path) else value


def _check_space(trace):
    """Raises SimulationError if the disk that holds a trace is full. Simulators truncate the trace without an error."""
    space = trace.with_name("space")
    try:
        space.write_bytes(bytes(1 << 16))
    except OSError as error:
        raise SimulationError(f"{trace}: {error.strerror}; the waves may be cut, free space on that disk") from None
    finally:
        space.unlink(missing_ok=True)


def _run_folder(module, directory):
    """Creates the folder of a simulation, or uses `directory`, and deletes the report of an earlier simulation in it. Returns the
    folder."""
    if directory is None:
        runs = build_directory() / "runs"
        runs.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{module.rpartition('.')[2]}-", dir=runs))
    run = Path(directory).resolve()
    run.mkdir(parents=True, exist_ok=True)
    for name in ("progress", "report.json"):
        (run / name).unlink(missing_ok=True)
    return run


def _failures(results_path, ended):
    """Returns the failures in cocotb's results as text. The text is empty if all tests passed."""
    try:
        tree = xml.etree.ElementTree.parse(results_path)
    except (OSError, xml.etree.ElementTree.ParseError):
        return f"{ended} without results"
    cases = list(tree.iter("testcase"))
    if not cases:
        return "no such test"
    texts = []
    for case in cases:
        for bad in (*case.iter("failure"), *case.iter("error")):
            message = (bad.get("message") or bad.get("error_msg") or bad.get("type") or "failed").strip()
            texts.append(f"{case.get('name')}: {message}")
    return "; ".join(texts)
