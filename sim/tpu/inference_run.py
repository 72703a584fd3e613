"""The result of executing a model on a backend: outputs, cost, and checks."""

from dataclasses import dataclass, field

import numpy as np

from ..check.against_model import against_model
from ..check.interpreters import InterpreterError
from ..check.overflow import first_not_finite
from ..data.printable import quoted
from ..host.inference import RunError
from .places import interpreter_of

__all__ = ["InferenceRun", "RunError", "checked"]


def _failure(result, reason):
    """Returns a message of one line if a result failed a check. Otherwise returns None."""
    if result.fault:
        return f"the core stopped with fault {result.fault['cause']} at pc {result.fault['pc']:#x}"
    if result.mismatched_bits:
        return f"{result.mismatched_bits} bits differ from the golden model{reason()}"
    if result.protocol_errors:
        return f"{result.protocol_errors} violations of the AXI protocol"
    return None


def checked(result, reason=str):
    """Returns a result unchanged; it may be None. Raises RunError if a check failed. For bit mismatches, `reason()` is the cause
    in the message."""
    failure = result and _failure(result, reason)
    if failure:
        raise RunError(failure)
    return result


@dataclass(frozen=True, eq=False)
class InferenceRun:
    """The result of executing a model on a backend.

    Parameters
    ----------
    outputs : dict of str to array
        Output arrays in the shapes of the ONNX model, by name.
    result : sim.host.inference.RunResult or None
        Cycles, stalls, and bit mismatches with the golden model. None for an ONNX interpreter.
    program : sim.compiler.program.Program or None
        The compiled program, or None for backends that need no program.
    rows : float32 (count, values)
        The samples.
    """

    network: object = field(repr=False)
    place: object
    rows: np.ndarray = field(repr=False)
    outputs: dict
    result: object = None
    program: object = field(default=None, repr=False)

    @property
    def output(self):
        """Returns the output array, or `{name: array}` if the model has several outputs."""
        return next(iter(self.outputs.values())) if len(self.outputs) == 1 else self.outputs

    @property
    def failure(self):
        """Returns a message of one line if a check failed. Otherwise returns None."""
        return None if self.result is None else _failure(self.result, self._reason)

    def check(self):
        """Returns this object. Raises RunError if a check failed."""
        checked(self.result, self._reason)
        return self

    def compare(self, against=None, most=8):
        """Compares the results with an ONNX interpreter as :meth:`sim.tpu.model.Model.compare` does.

        If no interpreter can execute the model, `samples` is 0 and `reason` is the cause.
        """
        if self.result is None:
            raise InterpreterError("this run is an ONNX interpreter's own; compare a run on a core or on a model of the core")
        makers = None if against is None else [interpreter_of(against).make]
        return against_model(self.network, self.rows, self.result.logits, makers=makers, most=most)

    def _reason(self):
        """Returns the cause of bit mismatches if infinite or NaN values explain them, else an empty text."""
        result = self.result
        different = (result.logits != result.expected).any(axis=1)
        rows = self.rows[: len(different)]
        name = first_not_finite(self.network, rows[different][:8]) or first_not_finite(self.network, rows)
        return (
            ""
            if name is None
            else (
                f": the result of {quoted(name)} is infinite or NaN for some samples, and times a weight of 0 spreads to others "
                "in the same tile; scale the samples down"
            )
        )
