"""Liberty files: the areas, capacitances, functions, energies and transitions of standard cells."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field

from .liberty_function import compile_function, names_in

__all__ = ["Library", "LibertyError", "Pin", "StandardCell", "Table", "parse_library"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[(){};:,]|[^\s(){};:,"]+')
_PREFIXES = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}


class LibertyError(ValueError):
    """The error of a Liberty file that cannot be used. Its message names the cause and the remedy."""


@dataclass
class _Group:
    """A group of a Liberty file: `name (arguments) { ... }`. Repeated attributes keep their last value."""

    name: str
    arguments: list
    values: dict = field(default_factory=dict)
    groups: list = field(default_factory=list)

    def all(self, *names):
        return [group for group in self.groups if group.name in names]

    def number(self, name, default=0.0):
        return float(self.values.get(name, default))


@dataclass(frozen=True)
class Table:
    """A table over the load in farads and the transition of the input in seconds. One point stands for a constant."""

    loads: tuple
    transitions: tuple
    values: tuple

    def at(self, load, transition):
        """Returns the value at a load and a transition: linear between points, constant outside the table."""
        (row, above), (column, right) = _place(self.loads, load), _place(self.transitions, transition)
        width = len(self.transitions)

        def point(i, j):
            return self.values[min(i, len(self.loads) - 1) * width + min(j, width - 1)]

        upper = point(row, column) * (1 - right) + point(row, column + 1) * right
        lower = point(row + 1, column) * (1 - right) + point(row + 1, column + 1) * right
        return upper * (1 - above) + lower * above


def _place(axis, value):
    """Returns `(index, fraction)` of a value between two points of an axis."""
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    index = bisect_right(axis, value) - 1
    return index, (value - axis[index]) / (axis[index + 1] - axis[index])


@dataclass(frozen=True)
class Pin:
    """A pin of a cell."""

    name: str
    output: bool
    capacitance: float  # farads
    function: object  # Callable or None. See :func:`compile_function`. None for inputs, and for outputs that depend on a latch.
    #: energy, transition: Tuple of Table. Tables whose mean counts: joules per edge, and seconds. The energy excludes the load.
    energy: tuple
    transition: tuple


@dataclass(frozen=True)
class StandardCell:
    """A cell of the library."""

    name: str
    area: float  # area in the unit of the file, square micrometres by convention
    leakage: float  # watts
    pins: dict  # {name: Pin}. For a register, the function of an output reads the state variables of `register`.
    #: For an edge-triggered register: `(state variable, inverted state variable, function of the next state, clock pin)`.
    register: tuple | None = None

    @property
    def inputs(self):
        return [pin.name for pin in self.pins.values() if not pin.output]

    @property
    def outputs(self):
        return [pin for pin in self.pins.values() if pin.output]

    def computes(self, *truth):
        """Returns True if the cell has one output that computes this truth table; bit k of an index is input k."""
        names, outputs = self.inputs, self.outputs
        if self.register or len(outputs) != 1 or outputs[0].function is None or 1 << len(names) != len(truth):
            return False
        rows = [{name: row >> k & 1 for k, name in enumerate(names)} for row in range(len(truth))]
        return all(outputs[0].function(row, 1) == value for row, value in zip(rows, truth))


@dataclass(frozen=True)
class Library:
    """A library of cells, {name: StandardCell}, and its supply voltage in volts."""

    name: str
    voltage: float
    cells: dict

    def smallest(self, what, *truth):
        """Returns the smallest cell with a truth table, see :meth:`StandardCell.computes`. `what` names it in the error."""
        found = [cell for cell in self.cells.values() if cell.computes(*truth)]
        if not found:
            raise LibertyError(f"library {self.name} has no {what}; name another file with --liberty")
        return min(found, key=lambda cell: cell.area)


def _tokens(text):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL).replace("\\\n", " ").replace("\\\r\n", " ")
    return _TOKEN.findall(text)


def _groups(tokens):
    """Returns the tree of groups of a file, below a group without a name."""
    root = _Group("", [])
    open_groups, words, at = [root], [], 0
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token == ":":
            end = next(i for i in range(at, len(tokens)) if tokens[i] in ";}" or tokens[i + 1 : i + 2] in ([":"], ["("]))
            open_groups[-1].values[words[-1]] = " ".join(tokens[at : end if tokens[end] in ";}" else end]).strip('"')
            words, at = [], end
        elif token == "(":
            end = tokens.index(")", at)
            arguments = [word.strip('"') for word in tokens[at:end] if word != ","]
            at, name = end + 1, words[-1]
            words = []
            if tokens[at : at + 1] == ["{"]:
                group = _Group(name, arguments)
                open_groups[-1].groups.append(group)
                open_groups.append(group)
                at += 1
            else:
                open_groups[-1].values[name] = arguments
        elif token == "}":
            open_groups.pop()
        elif token != ";":
            words.append(token)
    return root


def _numbers(arguments):
    return tuple(float(word) for argument in arguments for word in argument.replace(",", " ").split())


class _Reader:
    """Conversion of the groups of a library to its cells, in SI units."""

    def __init__(self, library):
        self.library = library
        values = library.values
        size, unit = values.get("capacitive_load_unit", ["1", "pf"])
        self.farad = float(size) * _PREFIXES[unit.lower()[:-1]]
        self.second = self._unit("time_unit", "1ns", "s")
        self.watt = self._unit("leakage_power_unit", "1nW", "w")
        self.volt = self._unit("voltage_unit", "1V", "v")
        self.joule = self.farad * self.volt**2
        self.templates = {group.arguments[0]: group for group in library.all("lu_table_template", "power_lut_template")}

    def _unit(self, name, default, symbol):
        found = re.fullmatch(rf"([\d.]+)([fpnum]?){symbol}", self.library.values.get(name, default).lower())
        if not found:
            raise LibertyError(f"{name} {self.library.values[name]!r} is not a unit; correct the Liberty file")
        return float(found[1]) * _PREFIXES[found[2]]

    def _table(self, group, unit):
        template = self.templates.get(group.arguments[0] if group.arguments else "")
        loads, transitions, turned = (0.0,), (0.0,), False
        for number in (1, 2) if template else ():
            meaning = template.values.get(f"variable_{number}", "")
            index = group.values.get(f"index_{number}", template.values.get(f"index_{number}"))
            if "capacitance" in meaning:
                loads, turned = tuple(value * self.farad for value in _numbers(index)), number == 2
            elif "transition" in meaning:
                transitions = tuple(value * self.second for value in _numbers(index))
        values = tuple(value * unit for value in _numbers(group.values["values"]))
        if turned:
            values = tuple(values[j * len(loads) + i] for i in range(len(loads)) for j in range(len(transitions)))
        return Table(loads, transitions, values)

    def _pin(self, group, known):
        energies = [table for power in group.all("internal_power") for table in power.all("rise_power", "fall_power", "power")]
        edges = [table for timing in group.all("timing") for table in timing.all("rise_transition", "fall_transition")]
        function = group.values.get("function")
        return Pin(
            group.arguments[0],
            group.values.get("direction") == "output",
            group.number("capacitance") * self.farad,
            compile_function(function) if function and names_in(function) <= known else None,
            tuple(self._table(table, self.joule) for table in energies),
            tuple(self._table(table, self.second) for table in edges),
        )

    def cell(self, group):
        registers = group.all("ff")
        register = None
        if registers:
            (state, inverse), values = registers[0].arguments, registers[0].values
            register = state, inverse, compile_function(values["next_state"]), values["clocked_on"].strip()
        known = {pin.arguments[0] for pin in group.all("pin")} | {*(register or ())[:2]}
        pins = [self._pin(pin, known) for pin in group.all("pin")]
        leakage = group.number("cell_leakage_power") * self.watt
        return StandardCell(group.arguments[0], group.number("area"), leakage, {pin.name: pin for pin in pins}, register)


def parse_library(text):
    """Returns the :class:`Library` of a Liberty file's text.

    Raises
    ------
    LibertyError
        If the text is not a Liberty file.
    """
    try:
        (group,) = _groups(_tokens(text)).all("library")
        reader = _Reader(group)
        cells = {cell.arguments[0]: reader.cell(cell) for cell in group.all("cell")}
        voltage = group.number("nom_voltage") * reader.volt
    except LibertyError:
        raise
    except (ValueError, IndexError, KeyError, StopIteration) as error:
        raise LibertyError(f"not a Liberty file ({error}); name another file with --liberty") from None
    return Library(group.arguments[0], voltage, cells)
