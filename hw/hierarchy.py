"""Modules that are written once in the Verilog, however often they are instantiated.

Amaranth writes every instance of a component out again. For repeated parts, :func:`instantiate` adds a plain submodule in
Amaranth's own simulator, and in an export (where the platform is a :class:`Hierarchy`) a reference to a module that
:mod:`hw.export` writes once.
"""

from amaranth.hdl import ClockSignal, Instance, ResetSignal
from amaranth.lib.wiring import Out

__all__ = ["Hierarchy", "instantiate"]


class Hierarchy:
    """The platform of an export: collects `(component, clocked)` of what is to be written once, by module name."""

    def __init__(self):
        self.modules = {}


def instantiate(m, platform, make, *, name, module, clocked=True):
    """Add the component that `make()` gives to `m` as submodule `name`, and return what has its members.

    An export shares all that have the same `module` name. The component works in the domain `sync`, or in none (`clocked`
    is False), and its members are flat, or arrays of what is flat.
    """
    if not isinstance(platform, Hierarchy):
        m.submodules[name] = component = make()
        return component
    if module not in platform.modules:
        platform.modules[module] = make(), clocked
    signature = platform.modules[module][0].signature
    interface = signature.create(path=(name,))
    ports = {"i_clk": ClockSignal(), "i_rst": ResetSignal()} if clocked else {}
    for path, member, value in signature.flatten(interface):
        direction = "o" if member.flow is Out else "i"
        ports[f"{direction}_{'__'.join(map(str, path))}"] = value
    m.submodules[name] = Instance(module, **ports)
    return interface
