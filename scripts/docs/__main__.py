"""The command that builds the documentation site.

`python -m amaranth_tpu.scripts.docs` writes the site to `site/` in the build folder. A link without a target ends the command
with an error.
"""

from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.hw.tools.process import ToolError, build_directory

from ..cli.command_line import RunFailed, console, run_app, usable_folder
from ..show.terminal import spinner

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def docs(output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the site.")] = None):
    """Build the documentation site from the repository's Markdown; every link is checked."""
    from .site import build

    output = output or build_directory() / "site"
    usable_folder(output)
    with spinner(console, "building the site"):
        count = build(output)
    console.print(f"[green]{output}[/]: {count} pages; look at it with: python3 -m http.server -d {output} -b localhost")


def main():
    """Runs the command. Prints an expected error as one line and exits with 1."""
    run_app(app, (ToolError, RunFailed, OSError))


if __name__ == "__main__":
    main()
