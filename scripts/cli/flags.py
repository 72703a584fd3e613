"""Classes of commands whose `--help` shows no type beside a flag: `--json`, not `--json <bool>`."""

from typer.core import TyperCommand, TyperGroup

__all__ = ["FlagCommand", "FlagGroup"]


class _WithoutTypes:
    def get_params(self, ctx):
        """Returns the parameters, including `--help`. Flags get an empty type text."""
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class FlagCommand(_WithoutTypes, TyperCommand):
    """A command whose help shows no types beside flags."""


class FlagGroup(_WithoutTypes, TyperGroup):
    """A group of subcommands whose help shows no types beside flags."""
