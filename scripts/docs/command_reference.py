"""The reference page of the command line, generated from the commands' own help texts."""

from enum import Enum

from typer.main import get_command

from ..show.markdown import markdown_table
from ..tpu import app

__all__ = ["command_reference"]

_HEAD = """# Command line

Made from the commands' own descriptions; `tpu COMMAND --help` shows the same. Every command takes `--json`, for programs. Exit
status 0 says that all went well, 1 that it did not, with one line that says why, 2 that the command line is wrong, 130 that it
was interrupted.
"""


def command_reference():
    """Returns the page as Markdown."""
    return _HEAD + "".join(f"\n{_command(name, one)}\n" for name, one in get_command(app).commands.items())


def _command(name, command):
    panels = {}
    for option in command.params:
        if not getattr(option, "hidden", False):
            panels.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(_row(option))
    parts = [f"## tpu {name}", command.help or "", command.epilog or ""]
    # The options of the core come last, and are the same everywhere.
    for title, rows in sorted(panels.items(), key=lambda panel: panel[0] == "Core"):
        columns = 3 if any(default for _, _, default in rows) else 2
        table = markdown_table(["option", "meaning", "default"][:columns], [row[:columns] for row in rows])
        parts += [f"**{title}**", table]
    return "\n\n".join(part.strip() for part in parts)


def _row(option):
    names = ", ".join(f"`{one}`" for one in (*option.opts, *option.secondary_opts))
    text = (option.help or "").replace("|", r"\|").replace("\n", " ")
    if isinstance(option.default, Enum):
        text += f" One of {', '.join(f'`{one.value}`' for one in type(option.default))}."
    default = getattr(option.default, "value", option.default)
    shown = "" if default is None or default is False or default is True or callable(default) else f"`{default}`"
    return [names, text, shown if option.show_default is not False else ""]
