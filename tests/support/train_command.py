"""Runs of `tpu train`."""

from json_output import printed


def run(command, *arguments):
    done = command("train", "--json", *arguments)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return printed("train", done.stdout)
