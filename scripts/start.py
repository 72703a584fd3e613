"""Where the command `tpu` starts: Ctrl-C has its answer before anything is imported, which takes some tenths of a second."""

import os
import signal

__all__ = ["main"]


def _interrupt(number, frame):
    """There is nothing to tidy up yet, and an exception would come out of whatever is being imported."""
    os.write(2, b"interrupted\n")
    os._exit(130)


def main():
    """Runs the command; :func:`scripts.cli.command_line.run_app` has its own answer to Ctrl-C."""
    signal.signal(signal.SIGINT, _interrupt)
    from .tpu import main

    main()
