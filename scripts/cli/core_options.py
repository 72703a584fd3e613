"""The options of a command that takes a core: `--preset`, and one for each field of :class:`hw.config.Config`."""

import functools
import inspect
import itertools
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from amaranth_tpu.hw.config import PRESETS, Config, ConfigError, from_preset

__all__ = ["PANEL", "CoreChoice", "cores_of", "takes_core"]

#: Where `--help` shows these options.
PANEL = "Core"


@dataclass(frozen=True)
class CoreChoice:
    """What was said about the core on the command line.

    Parameters
    ----------
    preset : str or None
        By `--preset`.
    changes : dict
        Field of :class:`hw.config.Config` to value, of the options that were given.
    """

    preset: str | None
    changes: dict

    @property
    def given(self):
        """The options that were given, as they are written."""
        return (["--preset"] if self.preset else []) + [_flag(name) for name in self.changes]

    def config(self, default="default", **others):
        """The configuration; `default` is the preset where none was given, `others` are fields that it has unless an option says
        otherwise.

        Raises
        ------
        hw.config.ConfigError
            For a core that can't be made.
        """
        return from_preset(self.preset or default, **{**others, **self.changes})


def _flag(name):
    return f"--{name.replace('_', '-')}"


def _option(entry, several=False):
    """A field's parameter of a command; None says that the option was not given."""
    text = entry.metadata["help"]
    if several:
        kind, names = str, _flag(entry.name)
        text += " Values with commas between them" + (", `on` or `off`." if entry.type is bool else ".")
    elif entry.type is bool:
        kind, names = bool, f"{_flag(entry.name)}/--no-{entry.name.replace('_', '-')}"
    else:
        kind, names = int, _flag(entry.name)
    if entry.default is not None:
        text += f" In `default`: {entry.default if entry.type is not bool else 'on' if entry.default else 'off'}."
    option = typer.Option(names, help=text, rich_help_panel=PANEL, show_default=False)
    return inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def takes_core(default="default", several=False):
    """Decorates a command that has a parameter `core`: it gets a :class:`CoreChoice`, the command line the options.

    Parameters
    ----------
    default : str
        What the help says that the preset is where none is given.
    several : bool
        Whether each option takes several values; the changes are then texts, for :func:`cores_of`.
    """
    preset = inspect.Parameter(
        "preset",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None,
            typer.Option(
                "--preset",
                help=f"Start from one of: {', '.join(PRESETS)}. Default: {default}.",
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
    """`(cores, refused)`: those of all combinations of the values that a :class:`CoreChoice` has as texts, and a ConfigError for
    each combination that no core can be made from. Raises typer.BadParameter for what is no value."""
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
        raise typer.BadParameter(f"takes {kind} with commas between them, not {text!r}", param_hint=_flag(entry.name)) from None
