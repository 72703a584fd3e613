"""Claims about circuits, and the SMT-LIB terms from which they are made."""

from dataclasses import dataclass

__all__ = ["WIDTH", "Claim", "State", "both", "count", "implies", "number", "total"]

#: Width in bits of all numbers in the specification: wider than any counter in the RTL.
WIDTH = 20


@dataclass(frozen=True)
class Claim:
    """A claim about a circuit, in words, and as SMT-LIB text that is satisfiable only if the claim is false."""

    text: str
    script: str


def number(value):
    return f"(_ bv{value % (1 << WIDTH)} {WIDTH})"


def both(*terms):
    return f"(and true {' '.join(terms)})"


def implies(condition, *terms):
    return f"(=> {condition} {both(*terms)})"


def total(*terms):
    return f"(bvadd {number(0)} {' '.join(terms)})"


def count(condition):
    return f"(ite {condition} {number(1)} {number(0)})"


class State:
    """SMT-LIB terms for registers and ports of a circuit in one cycle."""

    def __init__(self, circuit, cycle):
        self._circuit, self.cycle = circuit, cycle

    def flag(self, name):
        return f"(|dut_n {name}| run.{self.cycle})"

    def field(self, name, low, width):
        """Returns the term for `width` bits of a register or port, starting at bit `low`."""
        return f"((_ extract {low + width - 1} {low}) (|dut_n {name}| run.{self.cycle}))"

    def whole(self, name, width):
        """Returns the term for a whole register as a bit vector. Yosys represents a register of one bit as a Boolean."""
        return f"(ite {self.flag(name)} #b1 #b0)" if width == 1 else self.field(name, 0, width)

    def number(self, name, width):
        """Returns the term for a register as a number: a bit vector, extended to the width that all numbers of the specification
        have."""
        return f"((_ zero_extend {WIDTH - width}) (|dut_n {name}| run.{self.cycle}))"

    def bit(self, name, place):
        return f"(= {self.field(name, place, 1)} #b1)"
