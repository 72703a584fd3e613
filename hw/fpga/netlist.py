"""Analysis of Yosys' output: resources by block, and memories that were turned into flip-flops."""

import hashlib
import re
from collections import Counter

from .targets import RESOURCES

__all__ = ["AROUND", "CORE", "BlockHierarchy", "count_cells", "module_digests", "registers_for_memories"]

#: Names for cells in the core outside its blocks, and for cells outside the core.
CORE, AROUND = "tpu", "top"

_MODULE = re.compile(r"^module (\w+) ?\(.*?^endmodule", re.MULTILINE | re.DOTALL)
_INSTANCE = re.compile(r"^  (\w+) (\w+) \(", re.MULTILINE)
_TOOLS = re.compile(r"^// By .*", re.MULTILINE)
_NUMBER = re.compile(r"(?<=\$)\d+|(?<=techmap)\d+")  # a number in the name of an internal net
_FIRST_WORD = re.compile(r"^  (\w+) ", re.MULTILINE)  # the module, if the line starts an instance of any name
_REPLACED = re.compile(r"^Warning: Replacing memory \\(\S+) with list of registers\. See \S+?:(\d+)", re.MULTILINE)
_IN_FLIP_FLOPS = re.compile(r"^using FF mapping for memory (\S+)", re.MULTILINE)
_DECLARATION = re.compile(r"reg \[(\d+):0\] \S+ \[(\d+):0\];")


class BlockHierarchy:
    """The blocks of a design and their paths. Blocks are the submodules of the core, and of the modules around it.

    Parameters
    ----------
    verilog : str
        Verilog from Yosys, in which the line of each instance is indented by two spaces.
    top : str
        Top module: `tpu`; or `tpu_pod`, whose blocks are its cores; or a module that contains one of these at any depth.

    Attributes
    ----------
    chain : dict
        {module: path} of the modules from the top to the core.
    blocks : dict
        {path: (name of the block, module)} of the submodules of these modules.
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
        """Returns the name of the block to which a cell of the flat netlist belongs. `cell` is the path of the cell."""
        path, _ = self.place_of(cell)
        if path:
            return self.blocks[path][0]
        return CORE if cell.startswith(f"{self.chain[self.core]}.") else AROUND

    def place_of(self, cell):
        """Returns `(path of its block, submodule of the block)` of a cell of the flat netlist. Either is "" if there is none."""
        parts = cell.split(".")
        for count in range(1, len(parts)):
            path = ".".join(parts[:count])
            if path in self.blocks:
                return path, parts[count] if count + 1 < len(parts) else ""
        return "", ""

    def count_flat(self, netlist, cells):
        """Counts the resources of a flat netlist. Returns {block: {resource: count}}.

        `netlist` is {cell: {"type": ..., ...}}, as in Yosys' JSON. `cells` is {type of cell: (resource, count)}; see
        :class:`hw.fpga.targets.Family`.
        """
        blocks = {}
        for name, cell in netlist.items():
            _add(blocks.setdefault(self.block_of(name), Counter()), cell["type"], 1, cells)
        return _tidy(blocks)

    def count_modules(self, modules, cells):
        """Counts the resources of a hierarchical netlist. Returns {block: {resource: count}}. `modules` is {module: {type of
        cell: number}}, as in Yosys' `stat -json`."""
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


def module_digests(verilog):
    """Returns a digest for each module of a core and the modules in it, {module: digest}. Modules whose texts differ only in the
    numbers of internal nets have the same digest. The versions of the tools, which the text names, change all digests."""
    tools, digests = _TOOLS.search(verilog), {}
    bodies = {module[1]: module[0] for module in _MODULE.finditer(verilog)}

    def digest(name):
        if name not in digests:
            numbers: dict[str, str] = {}
            text = _NUMBER.sub(lambda match: numbers.setdefault(match[0], f"#{len(numbers)}"), bodies[name])
            inside = [digest(module) for module in _FIRST_WORD.findall(bodies[name]) if module in bodies]
            digests[name] = hashlib.sha256("\n".join([tools[0] if tools else "", text, *inside]).encode()).hexdigest()
        return digests[name]

    return {name: digest(name) for name in bodies}


def _add(counts, cell, number, cells):
    resource, count = cells.get(cell, (None, 0))
    if resource:
        counts[resource] += number * count


def count_cells(netlist, cells):
    """Counts the resources of the cells of one module of Yosys' JSON. Returns {resource: count}. `cells` is the same as for
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
    """Returns the memories that Yosys implemented with flip-flops, as {name: bits}. `log` is its log, `verilog` the text that it
    read.

    Memories of one row are excluded, as they are registers.
    """
    lines = verilog.splitlines()
    found = {name: None for name in _IN_FLIP_FLOPS.findall(log)}
    for name, line in _REPLACED.findall(log):
        # The log gives the line of a write to the memory; its declaration is above, in the same module.
        declarations = (_DECLARATION.search(text) for text in reversed(lines[: int(line)]) if f" {name} [" in text)
        declaration = next((match for match in declarations if match), None)
        width, depth = (int(declaration[1]) + 1, int(declaration[2]) + 1) if declaration else (0, 0)
        if depth != 1:
            found[name] = width * depth
    return found
