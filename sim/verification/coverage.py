"""Coverage of a core's Verilog: points counted by Verilator, merged over runs and instances, and their waivers."""

import dataclasses
import fnmatch
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KINDS", "Point", "Tally", "WAIVERS", "Waiver", "WaiverError", "blocks_of", "judge", "read_points", "read_waivers"]

#: Kinds of points, by Verilator's page.
KINDS = {"v_line": "line", "v_branch": "branch", "v_toggle": "toggle"}
#: The file of waivers: module, kind, names of points and reason, separated by bars.
WAIVERS = Path(__file__).with_name("waivers.txt")


class WaiverError(ValueError):
    """The file of waivers has a line that cannot be read; the message names it."""


@dataclass(frozen=True)
class Point:
    """A line, a branch, or one direction of a bit of a signal. Instances of a module share its points."""

    module: str
    kind: str
    line: int
    column: int
    name: str

    @property
    def signal(self):
        """Returns `(signal, bit)` of a toggle; the bit is None for a signal of one bit."""
        name, _, bits = self.name.rpartition(":")[0].partition("[")
        last = re.findall(r"\d+", bits)
        return name, int(last[-1]) if last else None


@dataclass(frozen=True)
class Waiver:
    """Points that need not be covered, with the reason. A pattern of toggles may end with a range of bits: `pc[0-4]`. A core and
    a slash may precede the module."""

    module: str
    kind: str
    pattern: str
    reason: str

    def covers(self, point):
        if point.kind != self.kind or not fnmatch.fnmatchcase(point.module, self.module.rpartition("/")[2]):
            return False
        pattern, low, high = re.fullmatch(r"(.*?)(?:\[(\d+)-(\d+)\])?", self.pattern).groups()
        if self.kind != "toggle":
            return fnmatch.fnmatchcase(point.name, self.pattern)
        name, bit = point.signal
        return fnmatch.fnmatchcase(name, pattern) and (low is None or bit is not None and int(low) <= bit <= int(high))


@dataclass
class Tally:
    """The points of a block by kind, the ones that were hit, and the ones that were neither hit nor waived."""

    points: Counter = field(default_factory=Counter)
    hit: Counter = field(default_factory=Counter)
    missed: list = field(default_factory=list)

    def add(self, other):
        self.points += other.points
        self.hit += other.hit
        self.missed += other.missed

    def percent(self, kind, waived=False):
        """Returns the share of points that were hit, or also the waived ones, in percent."""
        missed = sum(point.kind == kind for point in self.missed)
        hit = self.points[kind] - missed if waived else self.hit[kind]
        return 100 * hit / self.points[kind] if self.points[kind] else 100.0


def _decoded(name):
    return re.sub(r"__0([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), name)


def read_points(paths, verilog):
    """Returns `{point: count}` of Verilator's files, summed over files and instances. `verilog` is the text of the design.

    Wires that Yosys names (with `$`) are left out: they are parts of expressions, and their names change with its version.
    """
    lines, counts = verilog.splitlines(), Counter()
    for path in paths:
        with open(path, errors="replace") as file:
            for text in file:
                if not text.startswith("C '"):
                    continue
                fields, _, count = text[3:].rpartition("' ")
                values = dict(part.split("\2", 1) for part in fields.split("\1") if part)
                page, _, module = values["page"].partition("/")
                line, name = int(values["l"]), _decoded(values["o"])
                if KINDS[page] != "toggle":
                    name = f"{lines[line - 1].strip()} ({name})"
                elif "$" in name:
                    continue
                counts[Point(_decoded(module), KINDS[page], line, int(values["n"]), name)] += int(count)
    return counts


def read_waivers(path=WAIVERS):
    """Returns the waivers of a file. Raises WaiverError."""
    waivers = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            parts = [part.strip() for part in line.split("|")]
            if len(parts) != 4 or not all(parts) or parts[1] not in KINDS.values():
                raise WaiverError(f"{Path(path).name}:{number}: write `module | line, branch or toggle | names | reason`")
            waivers.append(Waiver(*parts))
    return waivers


def blocks_of(modules):
    """Returns {module: block}. A block is a module that is not a part of another one, as its name says: `tpu_fetch_beats` is a
    part of `tpu_fetch`. The core itself is the block `tpu`."""
    names = sorted(set(modules) - {"tpu"})
    return {"tpu": "tpu"} | {name: next(one for one in names if name == one or name.startswith(one + "_")) for name in names}


def _both_ways(point):
    """Returns both directions of a toggle. Constants rise once, at the start of the simulation."""
    name = point.name.rpartition(":")[0]
    return [dataclasses.replace(point, name=f"{name}:{way}") for way in ("0->1", "1->0")] if point.kind == "toggle" else []


def judge(counts, waivers, core=""):
    """Returns `(blocks, hit, useless)`: a :class:`Tally` by block, waived points that were hit as `{waiver: points}`, and waivers
    without points. A waived toggle counts as hit if the bit rises and falls. Waivers of other cores have no points."""
    blocks, tallies, used, hit = blocks_of(point.module for point in counts), defaultdict(Tally), set(), defaultdict(list)
    own = [one for one in waivers if one.module.rpartition("/")[0] in ("", core)]
    by_module = {module: [one for one in own if fnmatch.fnmatchcase(module, one.module.rpartition("/")[2])] for module in blocks}
    for point, count in counts.items():
        tally = tallies[blocks[point.module].removeprefix("tpu_")]
        waiver = next((one for one in by_module[point.module] if one.covers(point)), None)
        tally.points[point.kind] += 1
        tally.hit[point.kind] += count > 0
        used.add(waiver)
        if waiver and count and all(counts.get(one, 1) for one in _both_ways(point)):
            hit[waiver].append(point)
        elif not waiver and not count:
            tally.missed.append(point)
    return dict(sorted(tallies.items())), dict(hit), [waiver for waiver in waivers if waiver not in used]
