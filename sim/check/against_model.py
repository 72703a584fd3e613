"""Comparison of a network's results with ONNX interpreters on the same samples, within bounds of the rounding errors.

Two checks are made. First, an interpreter gets the samples in binary32, as the user gave them. Its values must agree with the
binary64 network, from which the compiler starts, within the error bounds of binary32. This check finds a model that was read
wrongly, even where the errors of bfloat16 are large. Second, every stage of the golden model must agree with the same stage of
the binary64 network on the same operands, within the error bounds of bfloat16 (:mod:`sim.check.reference`).
"""

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from ..data.printable import quoted
from ..ir.model_ends import softmax
from . import interpreters
from .interpreters import InterpreterError, values_of
from .overflow import first_not_finite
from .reference import BINARY32, check_stages, run_exact

__all__ = ["ModelComparison", "against_model", "chosen"]

_MOST = 8  # largest number of samples
_SECONDS = 4.0  # approximate time limit of an interpreter for all samples, in seconds
_SECONDS_AT_LEAST = 20.0  # an interpreter is skipped if its estimated time for one sample exceeds this, in seconds
_FINITE = 2.0**127  # a result must be finite where the interpreter's value is smaller than this
_FLOOR = 2e-4  # error relative to an output's largest value, for roundings of operations that the binary64 network has merged
_UNITS = {TensorProto.FLOAT16: 2.0**-11, TensorProto.BFLOAT16: 2.0**-8}


@dataclass(frozen=True)
class ModelComparison:
    """Statistics of the comparison of results with an ONNX interpreter."""

    samples: int  # number of samples compared; 0 if no interpreter could compute the model
    interpreter: str | None  # name and version of the interpreter
    output: str  # name of the ONNX tensor that was compared
    #: largest, rms: Largest and root mean square difference between the results and the interpreter's values. The operators that
    #: the host computes are included. None if no value is finite in both.
    largest: float | None = None
    rms: float | None = None
    scale: float | None = None  # root mean square of the interpreter's values
    #: Fraction of samples whose largest value has the same index in both, among the samples with finite values only. None if
    #: there is only one value per sample, or no such sample.
    top_agreement: float | None = None
    #: Number of values that are not finite in the interpreter or in the results. The other statistics omit them. A NaN only in
    #: the results, or an infinity in place of a finite value, is an `error`.
    not_finite: int = 0
    #: Largest difference between interpreter and binary64 network, relative to the bound for binary32. If it exceeds 1, the
    #: interpreter of the package `onnx` also computes the samples, in binary32 and in binary64. It is enough if one of them
    #: agrees with the binary64 network. None if the ratio is infinite, or if every sample overflows.
    reading: float | None = None
    #: Largest difference between a stage and the same stage of the binary64 network, relative to the bound for bfloat16.
    rounding: float | None = None
    reason: str | None = None  # reason why no interpreter was used
    #: One line about what was not checked: samples for which the interpreter overflows where the network does not, or the layers
    #: of a network whose weights are rounded to a format of fewer bits.
    note: str | None = None
    error: str | None = None  # one line about a difference that exceeds the bounds for binary32 or bfloat16


def chosen(count, most=_MOST):
    """Returns the indices of the samples to compare: at most `most`, evenly spaced over `count` samples."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(int))


def _first_not_finite(results):
    """Returns the index of the first sample with a NaN, and the index of the first sample with an infinity, if there are such
    samples."""
    return np.concatenate([np.flatnonzero(mask.any(axis=1))[:1] for mask in (np.isnan(results), np.isinf(results))])


_SECOND = (interpreters.onnx_reference, interpreters.onnx_reference_binary64)


def against_model(network, samples, results, *, makers=None, most=_MOST, second=_SECOND):
    """Compares the results of a network with its ONNX model.
    Returns a :class:`ModelComparison`.

    Parameters
    ----------
    network : Graph
        The network as read from a file, without changes.
    samples : float32 (count, size)
        Samples before rounding to bfloat16.
    results : float32 (count, results)
        Results of the network on the samples.
    makers : sequence of callable
        Constructors of interpreters, to try in this order, from :mod:`sim.check.interpreters`. Default: the installed ones.
    most : int
        Largest number of samples to compare. A slow interpreter compares fewer.
    second : sequence of callable
        Constructors of interpreters to try if the first interpreter exceeds its error bound. It is enough if one of them agrees
        with the binary64 network.
    """
    origin = network.origin
    if origin is None:
        return ModelComparison(0, None, "", reason="the network was not read from an ONNX file")
    count = min(len(samples), len(results))
    picked = np.union1d(chosen(count, most), _first_not_finite(results[:count]))
    samples, results = np.asarray(samples, np.float32)[picked], np.asarray(results)[picked]
    found = ModelComparison(0, None, origin.output.value)
    reasons = []
    for make in makers or interpreters.available():
        try:
            asked = [_asked(make, network, samples, results, output, second) for output in origin.compared]
            found = next((one for one in asked if one.error), asked[0])
            break
        except InterpreterError as error:
            reasons.append(str(error))
    else:
        found = replace(found, reason="; ".join(reasons))
    if network.rounded:
        note = f"{network.rounded}: the results of each layer are not compared with binary64"
        return replace(found, note=f"{found.note}; {note}" if found.note else note)
    few = samples[: max(1, found.samples)]
    worst = check_stages(network, few) if found.samples or _macs(network) <= 1e9 else None
    if worst is None:
        return found
    found = replace(found, rounding=worst.share)
    if worst.share > 1 and not found.error:
        found = replace(
            found,
            error=(
                f"{worst.title}: its results differ by up to {worst.difference:.3g} from binary64 on the same operands, but "
                f"bfloat16 explains only {worst.bound:.3g}: this is a fault in the compiler; report it with the model"
            ),
        )
    return found


def _macs(network):
    return sum(network.macs)


class _OtherShape(Exception):
    """An exception for an output whose shape differs from the shape that the reader found. The message is one line."""


def _check_shapes(title, origin, outputs, count, values):
    """Checks the shapes of an interpreter's values for `count` samples. `outputs` has the :class:`.ModelOutput` of each value, or
    None for a value that is not checked. Raises _OtherShape."""
    for output, value in zip(outputs, values):
        if output is not None:
            wanted = output.shape_of(count)[1 if origin.batch == 0 else 0 :]
            if np.shape(value) != wanted:
                raise _OtherShape(
                    f"output {quoted(output.name)}: {title} gives the shape {np.shape(value)} for {count} samples, the compiler "
                    f"understood {wanted}: the model was read wrongly"
                )


def _asked(make, network, samples, results, output, second):
    """Compares one output with one interpreter, made by `make`. Returns a :class:`ModelComparison`. Raises InterpreterError."""
    origin = network.origin
    labels = [one for one in origin.outputs if one.label and one.shapes is not None]
    interpreter = make(origin.path, [output.value, *(one.name for one in labels)])
    seconds = _macs(network) * max(1, origin.batch or 1) / interpreter.speed
    if seconds > _SECONDS_AT_LEAST:
        raise InterpreterError(f"{interpreter.title}: would take about {seconds:.0f} s for one sample")
    count = max(1, min(len(samples), int(_SECONDS / max(seconds, 1e-9))))
    samples, results = samples[:count], output.finish(results[:count])
    checked = [output if output.value == output.name else None, *labels]
    try:
        (theirs,) = values_of(
            interpreter,
            origin,
            samples,
            [results.shape[1]],
            check=lambda count, values: _check_shapes(interpreter.title, origin, checked, count, values),
        )
    except _OtherShape as error:
        return ModelComparison(count, interpreter.title, output.value, error=str(error))
    found = _figures(interpreter.title, output.value, theirs, results)
    found = _read_rightly(found, network, samples, theirs, make, output, second)
    return found if found.error else replace(found, error=_lost(found, network, samples, theirs, results))


def _lost(found, network, samples, theirs, results):
    """Returns a message of one line if a result is NaN where the interpreter's value is not, or infinite where it is finite."""
    lost = np.isnan(results) & ~np.isnan(theirs) | np.isinf(results) & (np.abs(theirs) < _FINITE)
    if not lost.any():
        return None
    sample, index = np.argwhere(lost)[0]
    stage = first_not_finite(network, samples[sample : sample + 1])
    where = f"operator {quoted(stage)} has results beyond 3.39e38, the largest bfloat16" if stage else "a sum overflows"
    return (
        f"output {quoted(found.output)}: value {index} of sample {sample} of those compared is {results[sample, index]:.6g}, "
        f"{found.interpreter} gives {theirs[sample, index]:.6g}: {where}; scale the samples down"
    )


def _figures(title, value, theirs, ours):
    finite = np.isfinite(theirs) & np.isfinite(ours)
    difference, ranked = ours[finite] - theirs[finite], finite.all(axis=1)
    same = (theirs.argmax(axis=1) == ours.argmax(axis=1))[ranked].mean() if ours.shape[1] > 1 and ranked.any() else None
    return ModelComparison(
        len(ours),
        title,
        value,
        largest=float(np.abs(difference).max()) if finite.any() else None,
        not_finite=int((~finite).sum()),
        rms=float(np.sqrt((difference**2).mean())) if finite.any() else None,
        scale=float(np.sqrt((theirs[finite] ** 2).mean())) if finite.any() else None,
        top_agreement=None if same is None else float(same),
    )


def _unit(path):
    """Returns the unit roundoff of the least precise number format in an ONNX model."""
    model = onnx.load(path, load_external_data=False)
    kinds = (
        {entry.type.tensor_type.elem_type for entry in model.graph.input}
        | {tensor.data_type for tensor in model.graph.initializer}
        | {attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "to"}
    )
    return max([_UNITS[kind] for kind in kinds if kind in _UNITS], default=2.0**-24)


def _read_rightly(found, network, samples, theirs, interpreter, output, second):
    """Compares an interpreter's values, `theirs`, with the binary64 network. Returns `found` with the result in `reading`, `note`
    or `error`."""
    origin = network.origin
    unit = _unit(origin.path)
    exact, bounds = (array[:, output.place] for array in run_exact(origin, samples, BINARY32(unit)))
    if output.last:  # the logarithm of a softmax differs by at most twice the largest difference of its operands
        away = 2 * bounds.max(axis=1, keepdims=True)
        exact = softmax(exact, output.last == "log")
        with np.errstate(over="ignore", invalid="ignore"):  # bounds that are not finite are not compared
            bounds = away + 1e-5 * np.abs(exact) if output.last == "log" else np.expm1(away) * exact + 1e-6
    share, place = _share(exact, bounds, theirs, unit)
    if share <= 1:
        return replace(found, reading=share)
    for make in second:
        try:  # an interpreter may have a bug, or the order of the model's operations may need more precision than binary32
            wide = make is interpreters.onnx_reference_binary64
            (values,) = values_of(make(origin.path, [output.value]), origin, samples, [exact.shape[1]], wide)
        except InterpreterError:
            continue
        again = _share(exact, bounds, values, unit)[0]
        if again <= 1:
            return replace(found, reading=again)
    sample, index = np.unravel_index(place, exact.shape)
    overflows = [interpreters.overflow_of(interpreter, origin, one) for one in samples]
    whole = np.array([one is None for one in overflows])
    again = _share(exact[whole], bounds[whole], theirs[whole], unit)[0] if whole.any() else None
    if again is None or again <= 1:
        return replace(
            found,
            reading=again,
            note=(
                f"{found.interpreter} overflows in {int((~whole).sum())} of these samples, left unchecked: {overflows[sample]}, "
                f"makes {theirs[sample, index]:.6g} where the exact value is {exact[sample, index]:.6g}"
            ),
        )
    return replace(
        found,
        reading=share if np.isfinite(share) else None,
        error=(
            f"output {quoted(output.name)}: {found.interpreter} gives {theirs[sample, index]:.6g} for value {index} of "
            f"sample {sample} of those compared, the compiler understood {exact[sample, index]:.6g}: the model was read wrongly"
        ),
    )


def _share(exact, bounds, theirs, unit):
    """Returns the largest ratio of a difference to its bound, and the flat index of the value with this ratio."""
    size = np.abs(np.where(np.isfinite(theirs), theirs, 0))
    bounds = bounds + max(_FLOOR, 16 * unit) * size.max(axis=0) + max(1e-6, unit) * size.max(initial=0)
    known = np.isfinite(exact) & np.isfinite(bounds)
    with np.errstate(invalid="ignore"):  # infinity - infinity: masked by `known`, or made infinite by the next line
        difference = np.where(known, np.abs(theirs - exact), 0)
    share = np.where(np.isnan(difference), np.inf, difference) / np.maximum(bounds, 1e-300)
    share = np.where(difference == 0, 0, share)
    return float(share.max(initial=0)), int(share.argmax())
