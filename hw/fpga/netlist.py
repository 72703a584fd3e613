"""Reads what Yosys made: resources by block, and memories that became flip-flops."""

import re
from collections import Counter

from .targets import RESOURCES

__all__ = ["AROUND", "CORE", "BlockHierarchy", "count_cells", "registers_for_memories"]

#: Name of what is in the core, but in none of its blocks; and of what is around the core.
CORE, AROUND = "tpu", "top"

_MODULE = re.compile(r"^module (\w+) ?\(.*?^endmodule", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(r"^  (\w+) (\w+) \(", re.MULTILINE)
_REPLACED = re.compile(r"^Warning: Replacing memory \\(\S+) with list of registers\. See \S+?:(\d+)", re.MULTILINE)
_IN_FLIP_FLOPS = re.compile(r"^using FF mapping for memory (\S+)", re.MULTILINE)
_DECLARATION = re.compile(r"reg \[(\d+):0\] \S+ \[(\d+):0\];")


class BlockHierarchy:
    """Where the blocks of a design are: the submodules of the core, and of what is around it.

    Parameters
    ----------
    verilog : str
        As Yosys writes it: an instance begins a line of two spaces.
    top : str
        The top module: `tpu`, or `tpu_pod`, whose blocks are its cores, or one that contains it at any depth.

    Attributes
    ----------
    chain : dict
        Module to its path, from the top to the core.
    blocks : dict
        Path of a submodule of these to (name of the block, module).
    """

    def __init__(self, verilog, top):
        bodies = {match[1]: match[0] for match in _MODULE.finditer(verilog)}
        self._instances = {
            name: [(instance, module) for module, instance in _INSTANCE.findall(body) if module in bodies]
            for name, body in bodies.items()
        }
        self.core = "tpu_pod" if "tpu_pod" in bodies else "tpu"
        self.chain = self._path_to_core(top, "")
        self.blocks = {}
        for parent, path in self.chain.items():
            for instance, module in self._instances[parent]:
                if module not in self.chain:
                    place = f"{path}.{instance}".lstrip(".")
                    taken = instance in [name for name, _ in self.blocks.values()]
                    self.blocks[place] = (place if taken else instance, module)

    def _path_to_core(self, module, path):
        if module == self.core:
            return {module: path}
        for instance, child in self._instances[module]:
            rest = self._path_to_core(child, f"{path}.{instance}".lstrip("."))
            if rest:
                return {module: path, **rest}
        return {}

    def block_of(self, cell):
        """The block that a cell of the flat netlist is in, by its path."""
        parts = cell.split(".")
        for count in range(1, len(parts)):
            path = ".".join(parts[:count])
            if path in self.blocks:
                return self.blocks[path][0]
        return CORE if cell.startswith(f"{self.chain[self.core]}.") else AROUND

    def count_flat(self, netlist, cells):
        """Resources by block of a flat netlist: {cell: {"type": ..., ...}} as in Yosys' JSON.

        `cells` says what a type of cell counts as, see :class:`hw.fpga.targets.Family`. Returns {block: {resource: count}}.
        """
        blocks = {}
        for name, cell in netlist.items():
            _add(blocks.setdefault(self.block_of(name), Counter()), cell["type"], 1, cells)
        return _tidy(blocks)

    def count_modules(self, modules, cells):
        """The same of a netlist that still has its hierarchy: {module: {type of cell: number}}, as Yosys' `stat -json`."""
        totals = {}

        def total(name):
            if name not in totals:
                totals[name] = counts = Counter()
                for cell, number in modules[name].items():
                    if cell in modules:
                        for resource, count in total(cell).items():
                            counts[resource] += number * count
                    else:
                        _add(counts, cell, number, cells)
            return totals[name]

        blocks = {name: total(module) for name, module in self.blocks.values()}
        for module in self.chain:
            own = blocks.setdefault(CORE if module == self.core else AROUND, Counter())
            for cell, number in modules[module].items():
                _add(own, cell, number, cells)
        return _tidy(blocks)


def _add(counts, cell, number, cells):
    resource, count = cells.get(cell, (None, 0))
    if resource:
        counts[resource] += number * count


def count_cells(netlist, cells):
    """Resources, {resource: count}, that the cells of one module of Yosys' JSON take; `cells` as of
    :meth:`BlockHierarchy.count_flat`."""
    counts = Counter()
    for cell in netlist:
        _add(counts, cell["type"], 1, cells)
    return _all_resources(counts)


def _all_resources(counts):
    return {resource: counts[resource] for resource in RESOURCES}


def _tidy(blocks):
    blocks = {block: _all_resources(counts) for block, counts in blocks.items()}
    used = {block: counts for block, counts in blocks.items() if any(counts.values())}
    return dict(sorted(used.items(), key=lambda entry: -entry[1]["lut"]))


def registers_for_memories(log, verilog):
    """Memories that became flip-flops, as {name: bits}, from Yosys' log and the text that it read.

    A memory of one row is a register by nature, and is left out.
    """
    lines = verilog.splitlines()
    found = {name: None for name in _IN_FLIP_FLOPS.findall(log)}
    for name, line in _REPLACED.findall(log):
        # The line is where the memory is written; its declaration is above, in the same module.
        declarations = (_DECLARATION.search(text) for text in reversed(lines[: int(line)]) if f" {name} [" in text)
        declaration = next((match for match in declarations if match), None)
        width, depth = (int(declaration[1]) + 1, int(declaration[2]) + 1) if declaration else (0, 0)
        if depth != 1:
            found[name] = width * depth
    return found
