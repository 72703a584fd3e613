"""Errors of the compiler about networks and steps that a core cannot run."""

__all__ = ["CompileError", "check_unit", "too_small"]


class CompileError(ValueError):
    """An error about a network that this configuration cannot run. The message is one line with the parameter at fault and the
    value needed."""


def too_small(config, name, needed, where=""):
    """Returns a text of one line: the parameter `name` of the configuration, which is too small, the value needed, and the option
    that sets it. `where` is the stage, if it is known."""
    stage, option = where and f"{where}: ", name.replace("_", "-")
    return f"{stage}{name} = {getattr(config, name)}: its smallest tile takes {needed}; choose a larger --{option}"


def check_unit(config, unit, needed, subject):
    """Raises CompileError if `subject` needs a unit that the core lacks. `unit` is the name of a field of Config."""
    if needed and not getattr(config, unit):
        raise CompileError(f"{subject} needs a core with {unit}; choose one with --{unit.replace('_', '-')}")
