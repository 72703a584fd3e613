"""The check of a compiled program before it is used: a model of the core runs it on random samples, and the golden model says
which results are right."""

import logging
from dataclasses import astuple, replace

import numpy as np

from amaranth_tpu.hw.verilog.header import command

from ..compiler.program_cache import content_of, digest_of, most_bytes
from ..data.disk_cache import DiskCache
from ..data.printable import printable, quoted
from ..data.progress_lines import phase
from ..data.stress_samples import stress_samples
from ..golden.machines import why_python
from ..golden.network import core_input, run_graph
from .inference import InferenceImage, RunError

__all__ = ["checked_program", "fault_of_compiler", "is_slow", "note_checked", "say_unchecked", "was_checked"]

#: An empty file for each program that is checked, and the bytes of all files.
_CHECKS, _CHECK_BYTES = DiskCache("checks"), 1 << 18
_SEED = 20
_DISTINCT = 12  # samples that the golden model computes; the batches have them in random order
_AT_ONCE = 4  # samples whose tensors are kept at the same time
_LARGEST = 40, 12, 0  # exponents of the largest numbers in samples: the first that gives finite results counts
_SECONDS = 20  # a check that takes longer has one batch
#: Seconds of the model of the core in Python: for an instruction, a pass, and a multiplication. In C it is faster.
_PYTHON, _FASTER = (5e-4, 3e-5, 1e-8), 40


def checked_program(network, program):
    """Checks a program, unless any process checked it before. Returns it with `checked` set. Raises RunError if a result
    differs from the golden model's, or the program ends with a fault. The message is one line.

    Batches have different samples, and the last one is not full. If the golden model's results are infinite or NaN for all random
    samples, the program stays unchecked, and a line says so.

    Parameters
    ----------
    network : Graph
        The network that `program` should compute.
    """
    content = content_of(network)
    if program.checked or was_checked(program, content):
        return replace(program, checked=True)
    with phase(checking(network.name, program)):
        count = program.batch if is_slow(program, 2) else max(_DISTINCT, program.batch + program.batch // 2 + 1)
        rows, expected = _finite_samples(network, min(count, _DISTINCT))
        if not len(rows):
            say_unchecked(network.name)
            return program
        order = np.random.default_rng(_SEED).permutation(np.resize(np.arange(len(rows)), count))
        cause = _difference(network, InferenceImage(program, rows[order]), expected[order])
    if cause:
        raise RunError(fault_of_compiler(network.name, program, cause))
    note_checked(program, content)
    return replace(program, checked=True)


def _key_of(program, meaning):
    """Returns the key of a check: a digest of a program's bytes and places, and of `meaning`, the values that say what it should
    compute."""
    places = [(name, one.region, one.rows, one.divided) for name, one in program.tensors.items()]
    sizes = sorted((region.name, size) for region, size in program.sizes.items())
    return digest_of(program.model, astuple(program.config), program.cores, program.batch, places, sizes, *meaning)


def was_checked(program, *meaning):
    """Returns True if :func:`note_checked` was called for this program, by any process, with this meaning."""
    return bool(most_bytes()) and _CHECKS.load(_key_of(program, meaning)) is not None


def note_checked(program, *meaning):
    """Notes that a program computes what `meaning` says."""
    if most_bytes():
        _CHECKS.store(_key_of(program, meaning), b"", _CHECK_BYTES)


def checking(name, program):
    """Returns the text of progress during a check of the network `name`."""
    seconds = _seconds(program)
    return f"checking the program of {printable(name)} on a model of the core" + (
        f", about {seconds:.0f} s a run" if seconds > _SECONDS else ""
    )


def is_slow(program, runs=1):
    """Returns True if a model of the core needs more than some seconds for this number of runs."""
    return runs * _seconds(program) > _SECONDS


def _seconds(program):
    counts = program.instructions, program.cost.passes, program.useful_macs
    seconds = program.cores * sum(count * each for count, each in zip(counts, _PYTHON))
    return seconds if why_python() else seconds / _FASTER


def fault_of_compiler(name, program, cause):
    """Returns the message for a program of the network `name` that failed its check. `cause` says how."""
    cores = f"{program.cores} cores of " if program.cores > 1 else ""
    return (
        f"the compiler made a wrong program of {printable(name)}, for a batch of {program.batch} on {cores}"
        f"`{command(program.config)}`: {cause}; please report this with the model; `model.check_programs = False` uses it anyway"
    )


def say_unchecked(name):
    """Logs that a program could not be checked."""
    logging.getLogger("amaranth_tpu").warning(
        "the program of %s is not checked: the golden model's results for random samples are infinite or NaN", printable(name)
    )


def _finite_samples(network, count):
    """Returns `(rows, results)` of random samples for which all tensors of the golden model are finite: up to `count` rows as
    :func:`.core_input` gives them. On other samples, the core may differ (:mod:`sim.check.overflow`)."""
    for most in _LARGEST:
        rows = core_input(network, stress_samples(network, count, _SEED, most))
        parts = [_computed(network, rows[first : first + _AT_ONCE]) for first in range(0, count, _AT_ONCE)]
        results, finite = (np.concatenate(part) for part in zip(*parts))
        if finite.all():
            break
    return rows[finite], results[finite]


def _computed(network, rows):
    results, tensors = run_graph(network, rows, keep=True)
    each = [np.isfinite(values.astype(np.float32)).reshape(len(rows), -1).all(axis=1) for values in tensors.values()]
    return results, np.logical_and.reduce(each)


def _difference(network, host, expected):
    """Runs batches on a model of the core. Returns None if the results are as expected, else the cause in a few words."""
    (output,), fault = host.execute()
    if fault:
        return f"it ends with fault {fault['cause']} at pc {fault['pc']:#x}"
    different = host.results(output).view(np.uint32) != expected.view(np.uint32)
    if not different.any():
        return None
    sample, value = np.argwhere(different)[0]
    ends = network.origin.outputs if network.origin else ()
    places = (f" of output {quoted(end.name)}" for end in ends if value in range(network.output_size)[end.place])
    return (
        f"{different.sum():,} of {different.size:,} values differ from the golden model's, first value {value}"
        f"{next(places, '')} in sample {sample}"
    )
