"""Names of the instances and signals in the Verilog of a core."""

import re
from dataclasses import dataclass

from amaranth_tpu.hw.tools.process import ToolError

__all__ = ["Net", "VerilogNames"]

_MODULE = re.compile(r"^module (\S+) \((.*?)^endmodule", re.MULTILINE | re.DOTALL)
_SIGNAL = re.compile(r"^  (?:(?:input|output) +)?(?:wire|reg) +(?:\[(\d+):0\] +)?(\\\S+ |[A-Za-z_]\w*\b)(?! *\[)", re.MULTILINE)
_INSTANCE = re.compile(r"^  (\w+) (\w+) \($", re.MULTILINE)


@dataclass(frozen=True)
class Net:
    """A range of bits of one signal."""

    path: str  # names of instances below the core, then the signal's name, joined by dots: `matmul.issuer.active`
    first: int = 0  # index of the lowest bit
    width: int | None = None  # Number of bits. None: all bits starting at `first`.


class VerilogNames:
    """The instances and signals below the module `top`, found in a Verilog text from :mod:`hw.verilog.export`.

    Parameters
    ----------
    verilog : str
    top : str
    """

    def __init__(self, verilog, top="tpu"):
        self.top = top
        bodies = dict(_MODULE.findall(verilog))
        #: {module: {signal name without escapes: (escaped name, width)}}
        self.signals = {
            module: {name.strip().lstrip("\\"): (name, int(high or 0) + 1) for high, name in _SIGNAL.findall(body)}
            for module, body in bodies.items()
        }
        #: {module: {instance: module of the instance}}
        self.instances = {
            module: {name: of for of, name in _INSTANCE.findall(body) if of in bodies} for module, body in bodies.items()
        }

    def find(self, path):
        """Splits the path of a :class:`Net` into `(instances, module, signal)`. The name of a signal may contain dots too."""
        instances, module, parts = [], self.top, path.split(".")
        while parts[0] in self.instances.get(module, {}):
            instances.append(parts.pop(0))
            module = self.instances[module][instances[-1]]
        name = ".".join(parts)
        if name not in self.signals.get(module, {}):
            raise ToolError(f"the core's Verilog has no signal {path}")
        return instances, module, name

    def walk(self):
        """Yields `(path, module)` for every instance. The path of the top module is empty."""
        waiting = [((), self.top)]
        while waiting:
            path, module = waiting.pop()
            yield path, module
            waiting += [((*path, name), of) for name, of in self.instances.get(module, {}).items()]

    def expression(self, net, root="testbench.core"):
        """Returns `(hierarchical reference, width)` of a :class:`Net`, below the instance `root`. Raises ToolError if the core
        lacks the signal."""
        instances, module, name = self.find(net.path)
        declared, whole = self.signals[module][name]
        width = whole - net.first if net.width is None else net.width
        if net.first + width > whole:
            raise ToolError(f"the core's Verilog has no bit {net.first + width - 1} in signal {net.path}")
        text = ".".join([root, *instances, declared])
        part = "" if width == whole else f"[{net.first + width - 1}:{net.first}]"
        return text + part, width
