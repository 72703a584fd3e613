"""Conversion of circuits to SMT-LIB, over several cycles, and a solver with a time limit."""

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

#: Yosys commands for :class:`Circuit` that convert memories to registers. They precede optimisation, which would merge parts of
#: memories. Missing rows are read as 0.
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
#: Seconds granted beyond the solver's own time limit, which it checks only from time to time.
_GRACE = 30


class SolverError(RuntimeError):
    """An error for a script that the solver rejects, or a solver that cannot start or crashed. The message is one line."""


@dataclass(frozen=True)
class Answer:
    """The solver's answer. `result` is `sat`, `unsat` or `unknown`. For `sat`, `values` maps the requested terms to ints.

    `seconds` is processor time. If the result is `unknown`, it is wall-clock time.
    """

    result: str
    values: dict
    seconds: float


def solve(script, values=(), *, timeout):
    """Decides if an SMT-LIB script is satisfiable. The script must not contain commands such as `check-sat`. Raises SolverError
    if Bitwuzla is missing, rejects the script, or crashes.

    Parameters
    ----------
    values : sequence of str
        Terms whose values are wanted if the script is satisfiable.
    timeout : float
        Time limit, in seconds. If it is exceeded, the answer is `unknown`.
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
    """A component in the clock domain `sync`, converted to SMT-LIB by Yosys. Registers have no initial values. Raises
    SolverError if the output of Yosys has an unknown form.

    The SMT-LIB text from Yosys describes one cycle. It has the state (the bits of all inputs and registers), the outputs as
    functions of the state, and the next value of each register. :meth:`unroll` connects cycles to a run.

    Parameters
    ----------
    component : wiring.Component
        Component without nested ports.
    changes : str
        Yosys commands that change the flattened netlist, one per line.
    name : str
        Prefix of all names, to distinguish several circuits in one script.

    Members
    -------
    script : str
        SMT-LIB text from Yosys. It must precede the text from :meth:`unroll`.
    inputs, outputs : dict
        Widths of the ports by name. `rst` is an input.
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
        """Assigns the bits of the state to inputs and registers, and finds the next values of the registers."""
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
        # {high bit: (low bit, term with the fields {run}, {cycle}, and {before} for the previous cycle)}
        self._parts = {}
        for index, (value, name) in enumerate(registers):
            high, low, boolean = places[name]
            value = f"(ite {value} #b1 #b0)" if boolean else value
            self.script += f"(define-fun {self.name}.{index} ((state |{self.name}_s|)) (_ BitVec {high - low + 1}) {value})\n"
            self._parts[high] = low, f"({self.name}.{index} {{run}}.{{before}})"
        for port, width in self.inputs.items():
            definition = re.search(rf"^\(define-fun \|{self.name}_n {port}\| \(\(state {state}\)\) .*$", text, re.M)
            # An input may occur as several bit ranges of the state.
            piece = rf"(?:\(\(_ extract (\d+) (\d+)\) )?\((\|{self.name}#\d+\|) state\)"
            for last, first, name in re.findall(piece, definition[0]):
                high, low, _ = places[name]
                if last:
                    high, low = low + int(last), low + int(first)
                self._parts[high] = low, f"((_ extract {width - 1} {width - 1 - high + low}) {{run}}.{port}.{{cycle}})"
                width -= high - low + 1
        # The remaining bits must be the clock and one bit that Yosys adds. Any other bit would be an input or a register held
        # constant.
        left = self._width - sum(high - low + 1 for high, (low, _) in self._parts.items())
        if len(registers) != transition.count("next_state)") or left != 2:
            raise SolverError("the SMT-LIB text of Yosys has an unknown form; its version may be too new, install an older one")
        self.script += f"(declare-const {self.name}.start |{self.name}_s|)\n"

    def _state(self, first):
        """Returns the terms for the bits of a state, from high to low. With `first`, the state is the first of a run, else a
        later one."""
        at, terms = self._width - 1, []
        while at >= 0:
            low, term = self._parts.get(at, (at, None))
            if term is None or first and "{before}" in term:
                term = f"((_ extract {at} {low}) {self.name}.start)"
            terms.append(term)
            at = low - 1
        return terms

    def unroll(self, run, cycles, given=None):
        """Returns SMT-LIB text that defines the cycles 0 to `cycles` of a run.

        All runs start with the same registers. Initial registers and inputs are unconstrained constants.

        Parameters
        ----------
        run : str
            Name of the run, the prefix of its terms.
        given : dict
            Inputs with given values: maps `(port, cycle)` to an SMT-LIB term.
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
        """Returns the term, a bit vector, for an input in one cycle of a run."""
        return f"{run}.{port}.{cycle}"

    def output(self, run, port, cycle):
        """Returns the term, a bit vector, for an output in one cycle of a run."""
        term = f"(|{self.name}_n {port}| {run}.{cycle})"
        return f"(ite {term} #b1 #b0)" if self.outputs[port] == 1 else term
