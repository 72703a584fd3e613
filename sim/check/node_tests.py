"""The operator tests of the package onnx, applied to the reader and the golden model.

A test is an ONNX model with one node, or with the nodes that define its operator, with inputs and the expected outputs. The
reader accepts weights and shapes only as constants, but in the tests they are inputs. Each test is therefore read several times:
once with all inputs, once with all floating-point inputs that have the first size of the first one, and once for each
floating-point input. The other inputs are constants.
"""

import re
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..data.digits import DataError
from ..data.samples import as_samples, joined_inputs
from ..frontend.load import load_network
from ..frontend.messages import inline
from ..golden.network import run_graph
from ..ir.errors import ModelError
from .against_model import against_model
from .interpreters import InterpreterSession
from .reference import BINARY32, run_exact

__all__ = ["PASSED", "REFUSED", "WRONG", "TRACEBACK", "Reading", "node_tests", "readings", "outcome", "groups", "general"]

PASSED, REFUSED, WRONG, TRACEBACK = "passed", "refused", "wrong", "traceback"
_NOTHING = "it has no layer"


@dataclass(frozen=True)
class Reading:
    """The outcome of a test for one choice of inputs."""

    test: str
    inputs: tuple[str, ...]  # Inputs of the model. The other inputs of the test are constants.
    outcome: str  # `passed`, `refused`, `wrong` or `traceback`
    reason: str = ""  # Reason for the outcome, in one line. Empty if the test passed.


def _is_float(array):
    return isinstance(array, np.ndarray) and (array.dtype.kind == "f" or array.dtype.name == "bfloat16")


def _arrays(case):
    """Returns the inputs of a test as {name: array}."""
    ((inputs, _),) = case.data_sets
    return dict(zip((entry.name for entry in case.model.graph.input), inputs))


def node_tests():
    """Returns the tests of the package onnx that have a floating-point input, sorted by name."""
    with warnings.catch_warnings(action="ignore"):  # the import takes seconds, and warns of infinities in the data
        from onnx.backend.test.loader import load_model_tests

        cases = [case for case in load_model_tests(kind="node") if any(map(_is_float, _arrays(case).values()))]
    return sorted(cases, key=lambda case: case.name)


def readings(case):
    """Reads and checks a test for each choice of inputs. Returns a list of :class:`Reading`.

    A model that only rearranges its input, such as a single Transpose, gets its input doubled and a node that halves it.
    """
    arrays = _arrays(case)
    floats = [name for name, array in arrays.items() if _is_float(array)]
    alike = tuple(name for name in floats if np.shape(arrays[name])[:1] == np.shape(arrays[floats[0]])[:1])
    choices = dict.fromkeys([tuple(arrays), alike, *((name,) for name in floats)])
    found = []
    for inputs in choices:
        one = _reading(case, arrays, inputs)
        if _NOTHING in one.reason and len(inputs) == 1:
            one = _reading(case, arrays, inputs, halved=True)
        found.append(one)
    return found


def outcome(found):
    """Returns the outcome of a test, and the reading that determines it. `found` are the readings of the test.

    The first outcome that occurs counts, in the order: traceback, wrong, passed, refused.
    """
    order = (TRACEBACK, WRONG, PASSED, REFUSED)
    best = min(found, key=lambda one: (order.index(one.outcome), len(one.inputs)))
    return best.outcome, best


def groups(found):
    """Counts the readings that were refused, by reason. Returns `[(reason, count)]`, the most frequent first. Names and numbers
    are removed from the reasons."""
    reasons = Counter(general(one.reason) for one in found if one.outcome == REFUSED)
    return sorted(reasons.items(), key=lambda item: (-item[1], item[0]))


def general(reason):
    """Removes the node and the numbers from a reason."""
    reason = re.sub(r"^operator \S+, node .*?(?:'|\)): ", "", reason)
    reason = re.sub(r"'[^']*'", "...", reason)
    reason = re.sub(r"\([^()]*\d[^()]*\)|\[[^\[\]]*\d[^\[\]]*\]", "(...)", reason)
    return re.sub(r"-?\d+(\.\d+)?(e[+-]\d+)?", "#", reason).partition(";")[0]


def _model(case, arrays, inputs, halved):
    """Builds the ONNX model of a test, with `inputs` as inputs and all other inputs as constants. For `halved`, see
    :func:`readings`."""
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    kept = [entry for entry in model.graph.input if entry.name in inputs]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items() if name not in inputs
    )
    kept = [onnx.ValueInfoProto.FromString(entry.SerializeToString()) for entry in kept]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    if halved:
        (name,), nodes = inputs, list(model.graph.node)
        model.graph.input[0].name = "twice"
        model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, arrays[name].dtype), "half"))
        del model.graph.node[:]
        model.graph.node.extend([helper.make_node("Mul", ["twice", "half"], [name]), *nodes])
    return model


def _reading(case, arrays, inputs, halved=False):
    def found(outcome, reason=""):
        return Reading(case.name, inputs, outcome, inline(reason))

    if not all(isinstance(arrays[name], np.ndarray) or np.isscalar(arrays[name]) for name in arrays):
        return found(REFUSED, "one of its inputs is not a tensor")
    ((_, outputs),) = case.data_sets
    expected = dict(zip((entry.name for entry in case.model.graph.output), outputs))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(_model(case, arrays, inputs, halved).SerializeToString())
        feeds = {"twice": 2 * arrays[inputs[0]]} if halved else {name: np.asarray(arrays[name]) for name in inputs}
        try:
            error = _difference(path, feeds, expected, (case.rtol, case.atol))
        except (ModelError, DataError) as error:
            return found(REFUSED, str(error).replace(f"{path}: ", ""))
        except Exception as error:  # a bug: the reader guarantees that it raises no other exceptions
            return found(TRACEBACK, f"{type(error).__name__}: {error}")
    return found(WRONG, error) if error else found(PASSED)


def _difference(path, arrays, expected, tolerance):
    """Returns a message of one line about a difference between the golden model's outputs and the expected outputs, or None.

    Differences within the bounds of rounding errors are accepted.
    """
    network = load_network(path)
    x = joined_inputs(network, arrays)
    samples = as_samples(network, x)
    results = run_graph(network, samples.rows)
    for output in network.origin.outputs:
        values, right = output.of(results), np.asarray(expected[output.name])
        values = values[0] if samples.alone else values
        if values.shape != right.shape:
            return f"output {output.name} has the shape {values.shape}, expected is {right.shape}"
        if output.label and (values != right).any():
            return f"output {output.name}: classes differ from the expected ones"
    if network.origin.output.label:
        return None  # the model is only an ArgMax of the input

    def expecting(path, names):
        return InterpreterSession("the test", lambda feeds: [expected[name] for name in names], speed=1e15)

    # Without a second interpreter: the expected outputs define the correct result.
    found = against_model(network, samples.rows, results, makers=[expecting], most=len(samples.rows), second=())
    if not found.samples:
        return found.reason
    if found.error and (found.rounding or 0) <= 1 and _is_near(network, samples.rows, expected, tolerance):
        return None
    return found.error or found.note or (f"{found.not_finite} values are not finite" if found.not_finite else None)


def _is_near(network, rows, expected, tolerance):
    """Returns True if the binary64 network is within the test's tolerance. Some expected outputs have few digits."""
    exact, _ = run_exact(network.origin, rows, BINARY32())
    return all(
        np.allclose(output.finish(exact), np.reshape(expected[output.name], (len(rows), -1)), *tolerance)
        for output in network.origin.outputs
        if not output.label
    )
