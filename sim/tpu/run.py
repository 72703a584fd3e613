"""A run of a model on one of its places: what came out, what it cost, and whether it held."""

from dataclasses import dataclass, field

import numpy as np

from ..check.against_model import against_model
from ..check.interpreters import InterpreterError
from ..check.overflow import first_not_finite
from ..data.printable import quoted
from .places import interpreter_of

__all__ = ["InferenceRun", "RunError", "checked"]


class RunError(RuntimeError):
    """A run did not give the golden model's bits; one line that says why."""


def _failure(result, reason):
    """What did not hold, in one line; None if all did."""
    if result.fault:
        return f"the core stopped with fault {result.fault['cause']} at pc {result.fault['pc']:#x}"
    if result.mismatched_bits:
        return f"{result.mismatched_bits} bits differ from the golden model{reason()}"
    if result.protocol_errors:
        return f"{result.protocol_errors} violations of the AXI protocol"
    return None


def checked(result, reason=str):
    """A result, or None, itself; raises RunError if something did not hold, with a reason where one is known."""
    failure = result and _failure(result, reason)
    if failure:
        raise RunError(failure)
    return result


@dataclass(frozen=True, eq=False)
class InferenceRun:
    """
    Parameters
    ----------
    outputs : dict of str to array
        By the names of the model's outputs, in its shapes.
    result : sim.host.inference.RunResult or None
        Cycles, stalls, bits that differ from the golden model's; None on an ONNX interpreter.
    program : sim.compiler.program.Program or None
        That ran; None where none did.
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
        """The only output's array, or the dict of all."""
        return next(iter(self.outputs.values())) if len(self.outputs) == 1 else self.outputs

    @property
    def failure(self):
        """What did not hold, in one line; None if all did."""
        return None if self.result is None else _failure(self.result, self._reason)

    def check(self):
        """The run itself. Raises RunError if something did not hold."""
        checked(self.result, self._reason)
        return self

    def compare(self, against=None, most=8):
        """See :meth:`sim.tpu.model.Model.compare`; where no interpreter can be asked, `samples` is 0 and `reason` says why."""
        if self.result is None:
            raise InterpreterError("what is compared with an ONNX interpreter has to come from a core or a model of it")
        makers = None if against is None else [interpreter_of(against).make]
        return against_model(self.network, self.rows, self.result.logits, makers=makers, most=most)

    def _reason(self):
        """Why bits differ, where it is known that the core can't have them right."""
        result = self.result
        different = (result.logits != result.expected).any(axis=1)
        rows = self.rows[: len(different)]
        name = first_not_finite(self.network, rows[different][:8]) or first_not_finite(self.network, rows)
        return (
            ""
            if name is None
            else (
                f": the result of {quoted(name)} is infinite or NaN for some samples, which on the core reaches others in "
                "the same tile, times a weight of 0; scale the samples down"
            )
        )
