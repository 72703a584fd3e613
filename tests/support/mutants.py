"""Mutants: errors planted in the source of a module."""

import inspect
import types

__all__ = ["plant"]


def plant(monkeypatch, module, old, new):
    """Replaces `old` by `new` in the source of a module, and gives the methods of the changed classes to the module's classes.
    `old` must occur once."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{module.__name__} has {old!r} {source.count(old)} times"
    changed = types.ModuleType(module.__name__)
    changed.__dict__.update(__package__=module.__package__, __file__=module.__file__)
    exec(compile(source.replace(old, new), module.__file__, "exec"), changed.__dict__)
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            for method, function in vars(getattr(changed, name)).items():
                if inspect.isfunction(function):
                    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
                        if variable == "__class__":  # for super()
                            cell.cell_contents = value
                    monkeypatch.setattr(value, method, function)
            changed.__dict__[name] = value  # the methods make components of the module's classes
