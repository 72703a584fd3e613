"""The options of commands that take a core: `--preset`, and one option for each field of :class:`hw.config.Config`."""

import functools
import inspect
import itertools
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from amaranth_tpu.hw.config import PRESETS, Config, ConfigError, from_preset

__all__ = ["PANEL", "CoreChoice", "cores_of", "takes_core"]

#: Panel of `--help` that shows these options.
PANEL = "Core"


@dataclass(frozen=True)
class CoreChoice:
    """The configuration of a core as the command line gives it."""

    preset: str | None  # value of `--preset`; None if the option was not given
    changes: dict  # values of the core options that were given, by field of :class:`hw.config.Config`

    @property
    def given(self):
        """Returns the names of the options that were given, as written on the command line."""
        return (["--preset"] if self.preset else []) + [_flag(name) for name in self.changes]

    def config(self, default="default", **others):
        """Returns the :class:`hw.config.Config`: the preset with the changes. Raises ConfigError if no core can be generated
        from the configuration.

        Parameters
        ----------
        default : str
            Preset if the command line names none.
        others : dict
            Values of further fields, used unless the command line gives an option for the field.
        """
        return from_preset(self.preset or default, **{**others, **self.changes})


def _flag(name):
    return f"--{name.replace('_', '-')}"


def _option(entry, several=False):
    """Returns a field of Config as a parameter of a typer command. If its value is None, the option was not given. `several` is
    True if the option takes several values."""
    text = entry.metadata["help"]
    if several:
        kind, names = str, _flag(entry.name)
        text += " Several values: separate them by commas" + (", `on` or `off`." if entry.type is bool else ".")
    elif entry.type is bool:
        kind, names = bool, f"{_flag(entry.name)}/--no-{entry.name.replace('_', '-')}"
    else:
        kind, names = int, _flag(entry.name)
    if entry.default is not None:
        text += f" Preset `default`: {entry.default if entry.type is not bool else 'on' if entry.default else 'off'}."
    option = typer.Option(names, help=text, rich_help_panel=PANEL, show_default=False)
    return inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def takes_core(default="default", several=False):
    """Returns a decorator for commands with a parameter `core`. The decorated command has the core's options, and gets their
    values as a :class:`CoreChoice` in `core`.

    Parameters
    ----------
    default : str
        Default preset, for the help text.
    several : bool
        True if each option takes several values. The changes are then texts, for :func:`cores_of`.
    """
    preset = inspect.Parameter(
        "preset",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                "--preset",
                help=f"Preset to start from; other core options change it. One of: {', '.join(PRESETS)}. Default: {default}.",
                show_default=False,
                autocompletion=lambda: list(PRESETS),
                rich_help_panel=PANEL,
            ),
        ],
    )
    options = [preset, *(_option(entry, several) for entry in fields(Config))]

    def decorate(command):
        @functools.wraps(command)
        def with_core(**values):
            chosen = {option.name: values.pop(option.name) for option in options}
            preset = chosen.pop("preset")
            changes = {name: value for name, value in chosen.items() if value is not None}
            return command(**values, core=CoreChoice(preset, changes))

        signature = inspect.signature(command)
        others = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in signature.parameters.values()
            if parameter.name != "core"
        ]
        with_core.__signature__ = signature.replace(parameters=[*others, *options])
        with_core.__annotations__ = {parameter.name: parameter.annotation for parameter in (*others, *options)}
        return with_core

    return decorate


_TRUTH = {"on": True, "off": False}


def cores_of(choice):
    """Returns `(cores, refused)` for all combinations of the option values in a :class:`CoreChoice` whose options take several
    values: the valid configurations, and a ConfigError for each other combination. Raises typer.BadParameter if a value has the
    wrong type."""
    lists = {entry.name: _values(entry, choice.changes[entry.name]) for entry in fields(Config) if entry.name in choice.changes}
    presets = (choice.preset or "default").split(",")
    cores, refused = {}, []
    for preset, *values in itertools.product(presets, *lists.values()):
        try:
            cores[from_preset(preset, **dict(zip(lists, values)))] = None
        except ConfigError as error:
            refused.append(error)
    return [*cores], refused


def _values(entry, text):
    try:
        return [_TRUTH[one] if entry.type is bool else int(one) for one in text.split(",")]
    except (KeyError, ValueError):
        kind = "`on` or `off`" if entry.type is bool else "integers"
        raise typer.BadParameter(f"takes {kind} separated by commas, not {text!r}", param_hint=_flag(entry.name)) from None
