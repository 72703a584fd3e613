"""Conversion of circuits to SMT-LIB, unrolled over cycles, and a solver with a time limit."""

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from amaranth.hdl import Shape
from amaranth.lib.wiring import In

from amaranth_tpu.hw.tools.yosys import run_yosys
from amaranth_tpu.hw.verilog.export import component_to_rtlil

__all__ = ["SolverError", "Answer", "Circuit", "solve", "MEMORIES"]

#: Yosys commands for :class:`Circuit` that convert memories to registers, before optimisation merges parts. Missing rows read 0.
MEMORIES = "memory_collect\nmemory_map\nsetundef -undriven -zero\nopt_clean"

_SCRIPT = """
read_rtlil design.il
hierarchy -check -top {name}
setattr -unset init w:*
proc
flatten
opt_clean
{changes}
dffunmap
opt_clean
write_smt2 -stbv design.smt2
"""

_SOLVER = Path(__file__).with_name("solver.py")
#: Grace period in seconds beyond the solver's own time limit, which the solver checks only now and then.
_GRACE = 30


class SolverError(RuntimeError):
    """The solver rejects its input, cannot run, or crashed; the message is one line."""


@dataclass(frozen=True)
class Answer:
    """The solver's answer: `result` is `sat`, `unsat` or `unknown`; for `sat`, `values` maps the requested terms to ints.

    `seconds` is processor time, or wall-clock time if the result is `unknown`.
    """

    result: str
    values: dict
    seconds: float


def solve(script, values=(), *, timeout):
    """Decides the satisfiability of an SMT-LIB script, which must not contain commands such as `check-sat`.

    Parameters
    ----------
    values : sequence of str
        Terms whose values to return.
    timeout : float
        Time limit in seconds, after which the answer is `unknown`.

    Raises
    ------
    SolverError
        If Bitwuzla is missing, rejects the script, or crashes.
    """
    if find_spec("bitwuzla") is None:
        raise SolverError("the solver is missing; install it with: pip install bitwuzla")
    values = list(values)
    job = json.dumps({"script": script, "values": values, "seconds": timeout})
    started = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_SOLVER)], input=job, capture_output=True, text=True, timeout=timeout + _GRACE
        )
    except subprocess.TimeoutExpired:
        return Answer("unknown", {}, time.monotonic() - started)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SolverError(f"the solver stopped with status {done.returncode}; it said: {said}")
    answer = json.loads(done.stdout)
    seconds = time.monotonic() - started if answer["result"] == "unknown" else answer["seconds"]
    return Answer(answer["result"], dict(zip(values, answer["values"])), seconds)


class Circuit:
    """A component in the domain `sync`, converted to SMT-LIB by Yosys, without initial values.

    Yosys describes one cycle: the state, which has the bits of all inputs and registers, the outputs as functions of the state,
    and the next value of each register. :meth:`unroll` chains cycles.

    Parameters
    ----------
    component : wiring.Component
        Component with flat members.
    changes : str
        Yosys commands that change the flattened design, one per line.
    name : str
        Prefix that distinguishes circuits in one script.

    Members
    -------
    script : str
        SMT-LIB text from Yosys, to be placed before the text from :meth:`unroll`.
    inputs, outputs : dict
        Port names to widths; `rst` is an input.

    Raises
    ------
    SolverError
        If the output of Yosys has an unknown form.
    """

    def __init__(self, component, changes="", name="dut"):
        self.component, self.changes, self.name = component, changes, name
        self.inputs, self.outputs = {}, {}
        for path, member, _ in component.signature.flatten(component):
            ports = self.inputs if member.flow is In else self.outputs
            ports["__".join(map(str, path))] = Shape.cast(member.shape).width
        self.inputs["rst"] = 1
        design = component_to_rtlil(component, name=name)
        self.script = run_yosys(_SCRIPT.format(changes=changes, name=name), {"design.il": design}, "design.smt2", timeout=120)
        self._read()

    def _read(self):
        """Maps the bits of the state to inputs and registers, and finds the next values of the registers."""
        text, state = self.script, rf"\|{self.name}_s\|"
        self._width = int(re.search(rf"^\(define-sort {state} \(\) \(_ BitVec (\d+)\)\)", text, re.M)[1])
        places = {
            name: (int(high), int(low), sort == "Bool")
            for name, sort, high, low in re.findall(
                rf"^\(define-fun (\S+) \(\(state {state}\)\) (Bool|\(_ BitVec \d+\)) "
                r"(?:\(= )?\(\(_ extract (\d+) (\d+)\) state\)",
                text,
                re.M,
            )
        }
        transition = text[text.index(f"(define-fun |{self.name}_t| ") :]
        registers = re.findall(rf"^  \(= (.*) \((\|{self.name}#\d+\|) next_state\)\) ;", transition, re.M)
        # High bit to low bit and a term with the fields {run}, {cycle} and {before}, the cycle before.
        self._parts = {}
        for index, (value, name) in enumerate(registers):
            high, low, boolean = places[name]
            value = f"(ite {value} #b1 #b0)" if boolean else value
            self.script += f"(define-fun {self.name}.{index} ((state |{self.name}_s|)) (_ BitVec {high - low + 1}) {value})\n"
            self._parts[high] = low, f"({self.name}.{index} {{run}}.{{before}})"
        for port, width in self.inputs.items():
            definition = re.search(rf"^\(define-fun \|{self.name}_n {port}\| \(\(state {state}\)\) .*$", text, re.M)
            # An input may be split into several pieces of the state.
            piece = rf"(?:\(\(_ extract (\d+) (\d+)\) )?\((\|{self.name}#\d+\|) state\)"
            for last, first, name in re.findall(piece, definition[0]):
                high, low, _ = places[name]
                if last:
                    high, low = low + int(last), low + int(first)
                self._parts[high] = low, f"((_ extract {width - 1} {width - 1 - high + low}) {{run}}.{port}.{{cycle}})"
                width -= high - low + 1
        # The remaining bits must be the clock and a bit of Yosys. Any other bit would be an input or a register held constant.
        left = self._width - sum(high - low + 1 for high, (low, _) in self._parts.items())
        if len(registers) != transition.count("next_state)") or left != 2:
            raise SolverError("the SMT-LIB text of Yosys has an unknown form; its version may be too new, install an older one")
        self.script += f"(declare-const {self.name}.start |{self.name}_s|)\n"

    def _state(self, first):
        """Returns the terms of a state, from high bits to low bits: the first state, or a later one of a run."""
        at, terms = self._width - 1, []
        while at >= 0:
            low, term = self._parts.get(at, (at, None))
            if term is None or first and "{before}" in term:
                term = f"((_ extract {at} {low}) {self.name}.start)"
            terms.append(term)
            at = low - 1
        return terms

    def unroll(self, run, cycles, given=None):
        """Returns text that defines the cycles 0 to `cycles` of a run.

        All runs start with the same registers. Initial registers and inputs are free constants.

        Parameters
        ----------
        run : str
            Name of the run.
        given : dict
            `(port, cycle)` to the term for the input in this cycle.
        """
        given = given or {}
        lines = []
        for cycle in range(cycles + 1):
            for port, width in self.inputs.items():
                name, sort = self.input(run, port, cycle), f"(_ BitVec {width})"
                lines.append(
                    f"(define-fun {name} () {sort} {given[port, cycle]})"
                    if (port, cycle) in given
                    else f"(declare-const {name} {sort})"
                )
            *terms, state = self._state(cycle == 0)
            for term in reversed(terms):
                state = f"(concat {term} {state})"
            state = state.format(run=run, cycle=cycle, before=cycle - 1)
            lines.append(f"(define-fun {run}.{cycle} () |{self.name}_s| {state})")
        return "\n".join(lines) + "\n"

    def input(self, run, port, cycle):
        """Returns the term, a bit vector, for an input in a cycle."""
        return f"{run}.{port}.{cycle}"

    def output(self, run, port, cycle):
        """Returns the term, a bit vector, for an output in a cycle."""
        term = f"(|{self.name}_n {port}| {run}.{cycle})"
        return f"(ite {term} #b1 #b0)" if self.outputs[port] == 1 else term
