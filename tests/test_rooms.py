"""Tests that a room (a folder of `hw`, `sim` or `scripts`) imports only from lower rooms, and that files have no circular
imports."""

import ast
import functools
import tomllib
from pathlib import Path

from sources import statements_of

ROOT = Path(__file__).parents[1]
#: Rooms in a line import only from rooms in lines below it, not from each other.
ORDER = """
    scripts/start scripts/docs
    scripts/tpu scripts/benchmark scripts/pictures scripts/cell_table scripts/prove scripts/testfloat
    scripts/coverage scripts/mutate scripts/night
    scripts/random_models
    scripts/native_cells
    scripts/datasheet scripts/english scripts/release
    scripts/cli
    scripts/package
    scripts/publish
    scripts/show
    sim/benches sim/proofs sim/verification
    sim/sweeps
    sim/short
    sim/tpu
    sim/trainer
    sim/host sim/check sim/bundle sim/export
    sim/compiler sim/frontend sim/models
    sim/fusion
    sim/rtl
    sim/golden
    sim/autodiff
    sim/ir
    sim/functions
    sim/data
    hw/standard_cells
    hw/fpga hw/fusesoc_generator
    hw/boards
    hw/verilog
    hw/pod
    hw/tpu hw/cycles
    hw/activation hw/matmul hw/ring hw/control
    hw/bus
    hw/array hw/softmax
    hw/arithmetic
    hw/config
    hw/spec hw/lib hw/tools
"""
#: Rooms inside a room, under the same rule. Files of the outer room itself may import from all of these.
INNER = """
    sim/compiler/order
    sim/compiler/codegen
    sim/compiler/tiling
    sim/compiler/lowering
    sim/compiler/memory
    sim/compiler/passes
    sim/compiler/timing
    sim/frontend/operators
    sim/frontend/formulas sim/frontend/validity
    sim/frontend/index
"""


def levels(order):
    """Returns {room: line number} for a text with several rooms a line."""
    return {room: level for level, line in enumerate(order.split("\n")) for room in line.split()}


LEVEL, INNER_LEVEL = levels(ORDER), levels(INNER)
#: The examples may import from any room.
FILES = {
    "amaranth_tpu." + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for top in ("hw", "sim", "scripts")
    for path in (ROOT / top).rglob("*.py")
    if "examples" not in path.parts
}


@functools.cache
def imported(name, path):
    return tuple(_imported(name, path))


def _imported(name, path):
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in statements_of(path):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *base.split(".")]).strip(".")
            yield from {f"{base}.{alias.name}" if f"{base}.{alias.name}" in FILES else base for alias in node.names} & {*FILES}
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & {*FILES}


def room_of(name):
    """Returns the room of a module, such as `sim/golden`. A file outside a room counts as a room itself."""
    return "/".join(name.split(".")[1:3])


def inner_room_of(name):
    room = "/".join(name.split(".")[1:4])
    return room if room in INNER_LEVEL else None


def test_arrows_go_down():
    upwards = [
        f"{name} imports {other}"
        for name, path in FILES.items()
        for other in imported(name, path)
        if room_of(name) != room_of(other) and other.count(".") > 1 and LEVEL[room_of(name)] >= LEVEL[room_of(other)]
    ]
    assert not upwards, upwards


def test_arrows_between_inner_rooms_go_down():
    upwards = [
        f"{name} imports {other}"
        for name, path in FILES.items()
        for other in imported(name, path)
        if room_of(name) == room_of(other) and inner_room_of(name) and inner_room_of(other)
        if inner_room_of(name) != inner_room_of(other) and INNER_LEVEL[inner_room_of(name)] >= INNER_LEVEL[inner_room_of(other)]
    ]
    assert not upwards, upwards


def test_no_circle():
    below = {name: {*imported(name, path)} - {name} for name, path in FILES.items()}
    while ends := [name for name, others in below.items() if not others & {*below}]:
        for name in ends:
            del below[name]
    assert not below, f"in a circle, or above one: {sorted(below)}"


def inner_rooms(outer):
    return [room for room in INNER_LEVEL if room.startswith(outer + "/")]


def test_the_map_has_every_room():
    """The map in CONTRIBUTING lists every room in order, with the first line of the room's docstring."""
    page = (ROOT / "CONTRIBUTING.md").read_text().split("```")[3].strip().split("\n")
    found = [line.split(maxsplit=1) for line in page]
    rooms = [room for outer in LEVEL if (ROOT / outer).is_dir() for room in (outer, *inner_rooms(outer))]
    assert [room for room, _ in found if not room.endswith(".py")] == rooms
    for room, text in found:
        path = ROOT / room if room.endswith(".py") else ROOT / room / "__init__.py"
        assert text == ast.get_docstring(ast.parse(path.read_text())).split("\n")[0], room


def test_every_room_is_installed():
    with open(ROOT / "pyproject.toml", "rb") as file:
        packages = {name for name in tomllib.load(file)["tool"]["setuptools"]["packages"] if name.count(".") > 1}
    rooms = [room for outer in LEVEL if (ROOT / outer).is_dir() for room in (outer, *inner_rooms(outer)) if room != "sim/short"]
    assert packages == {"amaranth_tpu." + room.replace("/", ".") for room in rooms}  # sim/short is amaranth_tpu.tpu
    inner = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("[hs]*/*/*/__init__.py")}
    assert inner == {room for room in INNER_LEVEL}
