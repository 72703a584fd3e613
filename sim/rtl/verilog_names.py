"""Names in the Verilog of a core: its instances, and the signals in each of them."""

import re
from dataclasses import dataclass

from amaranth_tpu.hw.tools.process import ToolError

__all__ = ["Net", "VerilogNames"]

_MODULE = re.compile(r"^module (\S+) \((.*?)^endmodule", re.MULTILINE | re.DOTALL)
_SIGNAL = re.compile(r"^  (?:(?:input|output) +)?(?:wire|reg) +(?:\[(\d+):0\] +)?(\\\S+ |[A-Za-z_]\w*)(?! *\[)", re.MULTILINE)
_INSTANCE = re.compile(r"^  (\w+) (\w+) \($", re.MULTILINE)


@dataclass(frozen=True)
class Net:
    """Bits of one signal.

    Parameters
    ----------
    path : str
        Instances below the core and the signal, joined by dots, as `matmul.issuer.active`.
    first : int
        Its lowest bit.
    width : int or None
        Bits; None: all from `first` on.
    """

    path: str
    first: int = 0
    width: int | None = None


class VerilogNames:
    """What a Verilog text that :mod:`hw.verilog.export` wrote has below its module `top`.

    Parameters
    ----------
    verilog : str
    top : str
    """

    def __init__(self, verilog, top="tpu"):
        self.top = top
        bodies = dict(_MODULE.findall(verilog))
        #: Module to signal, without the escape, to (its name as it has to be written, its width).
        self.signals = {
            module: {name.strip().lstrip("\\"): (name, int(high or 0) + 1) for high, name in _SIGNAL.findall(body)}
            for module, body in bodies.items()
        }
        #: Module to instance to its module.
        self.instances = {
            module: {name: of for of, name in _INSTANCE.findall(body) if of in bodies} for module, body in bodies.items()
        }

    def module_of(self, path):
        """The module of the instance at a path of names. Raises ToolError where there is none."""
        module = self.top
        for name in path:
            if name not in self.instances.get(module, {}):
                raise ToolError(f"the core's Verilog has no instance {'.'.join(path)}")
            module = self.instances[module][name]
        return module

    def walk(self):
        """`(path, module)` of every instance, the top's path being empty."""
        waiting = [((), self.top)]
        while waiting:
            path, module = waiting.pop()
            yield path, module
            waiting += [((*path, name), of) for name, of in self.instances.get(module, {}).items()]

    def expression(self, net, root="testbench.core"):
        """`(text, width)` of a :class:`Net`, seen from outside the core. Raises ToolError where there is none."""
        *path, name = net.path.split(".")
        found = self.signals.get(self.module_of(path), {}).get(name)
        if found is None:
            raise ToolError(f"the core's Verilog has no signal {net.path}")
        declared, whole = found
        width = whole - net.first if net.width is None else net.width
        if net.first + width > whole:
            raise ToolError(f"the core's Verilog has no bit {net.first + width - 1} in signal {net.path}")
        text = ".".join([root, *path, declared])
        part = "" if width == whole else f"[{net.first + width - 1}:{net.first}]"
        return text + part, width
