"""The entry point of the command `tpu`. It handles Ctrl-C during the imports, which take some tenths of a second."""

import os
import signal

__all__ = ["main"]


def _interrupt(number, frame):
    """Handles SIGINT: exits at once, as nothing needs cleanup yet. An exception would be raised inside an import."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def main():
    """Runs the command. :func:`scripts.cli.command_line.run_app` then installs another handler of Ctrl-C."""
    signal.signal(signal.SIGINT, _interrupt)
    from .tpu import main

    main()
