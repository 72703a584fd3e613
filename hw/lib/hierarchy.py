"""Shared modules: a component that is instantiated many times is emitted once in the Verilog.

Amaranth emits a module for every instance of a component. For repeated components, :func:`instantiate` adds a submodule in
Amaranth's simulator. In an export, where the platform is a :class:`Hierarchy`, it adds an instance of a module that
:mod:`hw.verilog.export` emits once.
"""

from amaranth.hdl import ClockSignal, DomainRenamer, Instance, ResetSignal
from amaranth.lib.wiring import Out

__all__ = ["Hierarchy", "instantiate"]


class Hierarchy:
    """The platform of Verilog exports. `modules` is {module name: (component, True if it has a clock)}."""

    def __init__(self):
        self.modules = {}


def instantiate(m, platform, make, *, name, module, domain="sync", **ports):
    """Adds the component that `make()` returns to `m` as submodule `name`.

    An export emits one module for all instances with the same `module` name. The component works in clock domain `domain`;
    with None it has no clock, or makes its own. Its members must be flat ports, streams, or arrays of these.

    With `ports`, a value for each member, the values are connected to the members, and inputs and outputs need no other
    wires. The name of a member of an interface is its path, joined by `__`. Without `ports`, returns an interface with the
    component's members.
    """
    if not isinstance(platform, Hierarchy):
        component = make()
        m.submodules[name] = DomainRenamer(domain)(component) if domain else component
        for path, member, value in component.signature.flatten(component) if ports else ():
            outside = ports["__".join(map(str, path))]
            m.d.comb += outside.eq(value) if member.flow is Out else value.eq(outside)
        return component
    if module not in platform.modules:
        platform.modules[module] = make(), domain is not None
    component = platform.modules[module][0]
    interface = None if ports else component.signature.create(path=(name,))
    connections = {"i_clk": ClockSignal(domain), "i_rst": ResetSignal(domain)} if domain else {}
    for path, member, value in component.signature.flatten(interface or component):
        port = "__".join(map(str, path))
        connections[f"{'o' if member.flow is Out else 'i'}_{port}"] = value if interface else ports[port]
    m.submodules[name] = Instance(module, **connections)
    return interface
