"""Names in the Verilog of a core: its instances and their signals."""

import re
from dataclasses import dataclass

from amaranth_tpu.hw.tools.process import ToolError

__all__ = ["Net", "VerilogNames"]

_MODULE = re.compile(r"^module (\S+) \((.*?)^endmodule", re.MULTILINE | re.DOTALL)
_SIGNAL = re.compile(r"^  (?:(?:input|output) +)?(?:wire|reg) +(?:\[(\d+):0\] +)?(\\\S+ |[A-Za-z_]\w*\b)(?! *\[)", re.MULTILINE)
_INSTANCE = re.compile(r"^  (\w+) (\w+) \($", re.MULTILINE)


@dataclass(frozen=True)
class Net:
    """Bits of one signal.

    Parameters
    ----------
    path : str
        Instances below the core and the signal, joined by dots: `matmul.issuer.active`.
    first : int
        Lowest bit.
    width : int or None
        Bits; None: all from `first` on.
    """

    path: str
    first: int = 0
    width: int | None = None


class VerilogNames:
    """The instances and signals below the module `top` in a Verilog text from :mod:`hw.verilog.export`.

    Parameters
    ----------
    verilog : str
    top : str
    """

    def __init__(self, verilog, top="tpu"):
        self.top = top
        bodies = dict(_MODULE.findall(verilog))
        #: Module to signal, without the escape, to (escaped name, width).
        self.signals = {
            module: {name.strip().lstrip("\\"): (name, int(high or 0) + 1) for high, name in _SIGNAL.findall(body)}
            for module, body in bodies.items()
        }
        #: Module to instance to the instance's module.
        self.instances = {
            module: {name: of for of, name in _INSTANCE.findall(body) if of in bodies} for module, body in bodies.items()
        }

    def find(self, path):
        """Splits a :class:`Net`'s path into `(instances, module, signal)`; a signal's name may contain dots too."""
        instances, module, parts = [], self.top, path.split(".")
        while parts[0] in self.instances.get(module, {}):
            instances.append(parts.pop(0))
            module = self.instances[module][instances[-1]]
        name = ".".join(parts)
        if name not in self.signals.get(module, {}):
            raise ToolError(f"the core's Verilog has no signal {path}")
        return instances, module, name

    def walk(self):
        """Yields `(path, module)` of every instance; the path of the top is empty."""
        waiting = [((), self.top)]
        while waiting:
            path, module = waiting.pop()
            yield path, module
            waiting += [((*path, name), of) for name, of in self.instances.get(module, {}).items()]

    def expression(self, net, root="testbench.core"):
        """Returns `(hierarchical reference, width)` of a :class:`Net`. Raises ToolError if the core lacks it."""
        instances, module, name = self.find(net.path)
        declared, whole = self.signals[module][name]
        width = whole - net.first if net.width is None else net.width
        if net.first + width > whole:
            raise ToolError(f"the core's Verilog has no bit {net.first + width - 1} in signal {net.path}")
        text = ".".join([root, *instances, declared])
        part = "" if width == whole else f"[{net.first + width - 1}:{net.first}]"
        return text + part, width
