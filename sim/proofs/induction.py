"""Proofs by induction over the cycles of a circuit: an invariant holds after a reset, and every cycle preserves it.

A :class:`Proof` has a component, its invariant and its claims, as terms over each :class:`Cycle`. Registers, inputs and the state
before the cycle are arbitrary, so the claims hold in all cycles after a reset, for all inputs that the environment may give.
"""

import re
from dataclasses import dataclass
from functools import reduce

from .smt import MEMORIES, Circuit, SolverError, solve
from .smt_terms import WIDTH

__all__ = ["Cycle", "Fact", "Outcome", "Proof", "Word", "all_of", "any_of", "choose", "count", "queue_claims", "selected"]


class Fact:
    """A Boolean term."""

    def __init__(self, text):
        self.text = str(text).lower() if isinstance(text, bool) else text

    def __and__(self, other):
        return Fact(f"(and {self.text} {_fact(other).text})")

    def __or__(self, other):
        return Fact(f"(or {self.text} {_fact(other).text})")

    def __xor__(self, other):
        return Fact(f"(xor {self.text} {_fact(other).text})")

    def __invert__(self):
        return Fact(f"(not {self.text})")

    def __eq__(self, other):
        return Fact(f"(= {self.text} {_fact(other).text})")

    def __rshift__(self, other):
        """Returns the implication."""
        return Fact(f"(=> {self.text} {_fact(other).text})")

    def __getitem__(self, place):
        return Word(f"(ite {self.text} #b1 #b0)", 1)[place]

    __hash__ = None


def _fact(value):
    return value if isinstance(value, Fact) else Fact(bool(value))


class Word:
    """A term for an unsigned number. Sums have at least :data:`.WIDTH` bits, so the counters of a specification do not wrap."""

    def __init__(self, text, width):
        self.text, self.width = text, width

    def _wide(self, width):
        return self.text if width == self.width else f"((_ zero_extend {width - self.width}) {self.text})"

    def _pair(self, other, least=0):
        other = _word(other)
        width = max(self.width, other.width, least)
        return self._wide(width), other._wide(width), width

    def _compared(self, operator, other):
        return Fact("({} {} {})".format(operator, *self._pair(other)[:2]))

    def __eq__(self, other):
        return self._compared("=", other)

    def __ne__(self, other):
        return ~(self == other)

    def __le__(self, other):
        return self._compared("bvule", other)

    def __lt__(self, other):
        return self._compared("bvult", other)

    def __ge__(self, other):
        return self._compared("bvuge", other)

    def __gt__(self, other):
        return self._compared("bvugt", other)

    def _with(self, operator, other, least=0):
        one, two, width = self._pair(other, least)
        return Word(f"({operator} {one} {two})", width)

    def __add__(self, other):
        return self._with("bvadd", other, WIDTH)

    def __sub__(self, other):
        return self._with("bvsub", other, WIDTH)

    def __and__(self, other):
        return self._with("bvand", other)

    def __or__(self, other):
        return self._with("bvor", other)

    def __getitem__(self, place):
        """Returns a bit as a fact, or a range of bits as a word."""
        if isinstance(place, slice):
            return Word(f"((_ extract {place.stop - 1} {place.start}) {self.text})", place.stop - place.start)
        return Fact(f"(= ((_ extract {place} {place}) {self.text}) #b1)")

    __hash__ = None


def _word(value):
    if isinstance(value, Fact):
        return Word(f"(ite {value.text} #b1 #b0)", 1)
    return value if isinstance(value, Word) else Word(f"(_ bv{value} {max(1, value.bit_length())})", max(1, value.bit_length()))


def all_of(facts):
    return reduce(Fact.__and__, facts, Fact(True))


def any_of(facts):
    return reduce(Fact.__or__, facts, Fact(False))


def count(facts):
    """Returns the number of true facts."""
    return reduce(Word.__add__, map(_word, facts), Word(f"(_ bv0 {WIDTH})", WIDTH))


def choose(condition, one, other):
    """Returns `one` if the condition holds, else `other`."""
    one, other, width = _word(one)._pair(other)
    return Word(f"(ite {_fact(condition).text} {one} {other})", width)


def selected(words, index):
    """Returns the element of a list of words, or of facts as words, at an index. An index beyond the end selects the last."""
    *first, found = map(_word, words)
    for place, word in reversed([*enumerate(first)]):
        found = choose(index == place, word, found)
    return found


class Cycle:
    """One cycle of a run: `cycle["name"]` is a port, a register or a ghost, as a fact if it has one bit, else as a word."""

    def __init__(self, number, widths, ghosts):
        self.number, self._widths, self._ghosts = number, widths, ghosts

    def __getitem__(self, name):
        if name in self._ghosts:
            return self._typed(f"{name}.{self.number}", self._ghosts[name])
        if name not in self._widths:
            raise SolverError(f"the circuit has no register {name!r}; its registers: {', '.join(sorted(self._widths))}")
        return self._typed(f"(|dut_n {name}| run.{self.number})", self._widths[name], boolean=True)

    def found(self, pattern):
        """Returns the registers and ports whose names match a regular expression, such as a name with a number of Yosys."""
        return [self[name] for name in self._widths if re.fullmatch(pattern, name)]

    @staticmethod
    def _typed(term, width, boolean=False):
        if width > 1:
            return Word(term, width)
        return Fact(term if boolean else f"(= {term} #b1)")

    def rows(self, memory, depth):
        """Returns the contents of a memory."""
        return [_word(self[f"{memory}[{row}]"]) for row in range(depth)]


@dataclass(frozen=True)
class Outcome:
    """The result of a proof: the texts of the parts that are false in a counterexample, none if proven. `seconds` is the solver's
    processor time."""

    name: str
    claims: int
    failed: tuple
    seconds: float


class Proof:
    """A proof by induction: the base class of a proof for each block.

    Members
    -------
    name : str
    cycles : int
        Cycles that the claims concern, after the first.
    """

    name, cycles = "", 1

    def make(self):
        """Returns the component."""
        raise NotImplementedError

    def claims(self, *run):
        """Returns the claims about the cycles 0, 1, ...: facts by text."""
        raise NotImplementedError

    def invariant(self, s):
        """Returns the list of facts that hold in every cycle after a reset."""
        return []

    def assume(self, s):
        """Returns the list of facts about the inputs, which the environment guarantees in every cycle."""
        return []

    def ghosts(self):
        """Returns the registers of the specification: name to `(width, value after a reset, next value)`. A value of None after
        a reset is any value. The next value is a function of a cycle."""
        return {}

    def run(self, timeout=60):
        """Returns the :class:`Outcome`. Raises SolverError without an answer in `timeout` seconds."""
        circuit = Circuit(self.make(), MEMORIES)
        found = re.findall(r"^; yosys-smt2-(?:register|input|output) (\S+) (\d+)$", circuit.script, re.M)
        widths = {name: int(width) for name, width in found} | circuit.inputs
        ghosts = self.ghosts()
        sizes = {name: width for name, (width, *_) in ghosts.items()}
        run = [Cycle(number, widths, sizes) for number in range(self.cycles + 1)]
        kept = {f"invariant {index}": fact for index, fact in enumerate(self.invariant(run[1]))}
        reset = [f"(assert {(run[1][name] == value).text})" for name, (_, value, _) in ghosts.items() if value is not None]
        step = [f"(assert (= run.rst.{one.number} #b0))" for one in run]
        step += [f"(assert {fact.text})" for fact in self.invariant(run[0])]
        step += [f"(assert {fact.text})" for one in run for fact in self.assume(one)]
        step += self._next_ghosts(run, ghosts)
        names = [(f"{name}.{one.number}", width) for name, width in sizes.items() for one in run]
        text = circuit.script + circuit.unroll("run", self.cycles)
        text += "".join(f"(declare-const {name} (_ BitVec {width}))\n" for name, width in names)
        claims = self.claims(*run)
        reset.append("(assert (= run.rst.0 #b1))")
        first, seconds = self._false(text, reset, {f"after a reset: {name}": fact for name, fact in kept.items()}, timeout)
        parts = {f"in each cycle: {name}": fact for name, fact in kept.items()} | claims
        failed, more = self._false(text, step, parts, timeout)
        return Outcome(self.name, len(claims), (*first, *failed), seconds + more)

    @staticmethod
    def _next_ghosts(run, ghosts):
        lines = []
        for now, then in zip(run, run[1:]):
            for name, (width, _, following) in ghosts.items():
                value = _word(following(now))
                text = value._wide(width) if value.width <= width else value[0:width].text
                lines.append(f"(assert (= {name}.{then.number} {text}))")
        return lines

    def _false(self, text, assumed, parts, timeout):
        """Returns the names of the parts that a counterexample makes false, and the solver's time."""
        defined = [f"(define-fun part.{index} () Bool {fact.text})" for index, fact in enumerate(parts.values())]
        names = [f"part.{index}" for index in range(len(parts))]
        script = "\n".join([text, *assumed, *defined, f"(assert (not (and true true {' '.join(names)})))"])
        answer = solve(script, names, timeout=timeout)
        if answer.result == "unknown":
            raise SolverError(f"{self.name}: no answer in {timeout:g} s; allow more time")
        wrong = [part for part, name in zip(parts, names) if answer.result == "sat" and not answer.values[name]]
        return wrong, answer.seconds


def queue_claims(now, then, *, contents, level, enters, leaves, data):
    """Returns the claims that a component is a queue: its contents equal a list to which `data` is appended if `enters`, and
    whose first element is removed if `leaves`.

    Parameters
    ----------
    contents : function
        From a cycle to the list of places, the first one to leave first.
    level : function
        From a cycle to the number of elements.
    """
    before, after, size = contents(now), contents(then), level(now)
    behind = [*before[1:], before[-1]]
    held = size - _word(leaves)
    places = [(held > place) >> (after[place] == choose(leaves, behind[place], before[place])) for place in range(len(before))]
    added = enters >> all_of((held == place) >> (after[place] == data) for place in range(len(before)))
    return {
        "no element is lost, added or overwritten": (level(then) == held + _word(enters)) & (level(then) <= len(before)),
        "elements keep their order and bits": all_of(places),
        "an element enters last, with its bits": added,
    }
