"""The options of a command that takes a core: `--preset`, and one for each field of :class:`hw.config.Config`."""

import functools
import inspect
from dataclasses import dataclass, fields
from typing import Annotated

import typer

from amaranth_tpu.hw.config import PRESETS, Config, from_preset

__all__ = ["PANEL", "CoreChoice", "takes_core"]

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


def _option(entry):
    """A field's parameter of a command; None says that the option was not given."""
    text = entry.metadata["help"]
    if entry.type is bool:
        kind, names = bool, f"{_flag(entry.name)}/--no-{entry.name.replace('_', '-')}"
    else:
        kind, names = int, _flag(entry.name)
    if entry.default is not None:
        text += f" In `default`: {entry.default if kind is int else 'on' if entry.default else 'off'}."
    option = typer.Option(names, help=text, rich_help_panel=PANEL, show_default=False)
    return inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def takes_core(default="default"):
    """Decorates a command that has a parameter `core`: it gets a :class:`CoreChoice`, the command line the options.

    Parameters
    ----------
    default : str
        What the help says that the preset is where none is given.
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
    options = [preset, *map(_option, fields(Config))]

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
