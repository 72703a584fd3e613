"""Entry point of the command `tpu`: handles Ctrl-C during the imports, which take some tenths of a second."""

import os
import signal

__all__ = ["main"]


def _interrupt(number, frame):
    """Exits at once: nothing needs cleanup yet, and an exception would surface inside an import."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def main():
    """Runs the command; :func:`scripts.cli.command_line.run_app` then installs its own handler of Ctrl-C."""
    signal.signal(signal.SIGINT, _interrupt)
    from .tpu import main

    main()
