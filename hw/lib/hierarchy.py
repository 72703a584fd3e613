"""Modules that are written once in the Verilog, however often they are instantiated.

Amaranth writes every instance of a component out again. For repeated parts, :func:`instantiate` adds a plain submodule in
Amaranth's own simulator, and in an export (where the platform is a :class:`Hierarchy`) a reference to a module that
:mod:`hw.verilog.export` writes once.
"""

from amaranth.hdl import ClockSignal, DomainRenamer, Instance, ResetSignal
from amaranth.lib.wiring import Out

__all__ = ["Hierarchy", "instantiate"]


class Hierarchy:
    """The platform of an export: collects `(component, clocked)` of what is to be written once, by module name."""

    def __init__(self):
        self.modules = {}


def instantiate(m, platform, make, *, name, module, domain="sync", **ports):
    """Add the component that `make()` gives to `m` as submodule `name`.

    An export shares all that have the same `module` name. The component works in `domain`, or, with None, in
    none that it does not make, and its members are flat, or streams and arrays of what is flat.

    With `ports`, a value for each member, inputs are driven by their values and outputs drive theirs: what repeats needs no
    wires but those. Without, the result is an interface that has the component's members.
    """
    if not isinstance(platform, Hierarchy):
        component = make()
        m.submodules[name] = DomainRenamer(domain)(component) if domain else component
        for port, value in ports.items():
            member = getattr(component, port)
            m.d.comb += value.eq(member) if component.signature.members[port].flow is Out else member.eq(value)
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
