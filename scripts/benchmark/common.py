"""Code that all tables share: the command line, calls of `tpu`, and the output of a table."""

import json
import subprocess
import sys
from typing import Annotated

import numpy as np
import typer

from amaranth_tpu.sim.data.digits import load_digits, preprocess
from amaranth_tpu.sim.golden.arithmetic import bfloat16
from amaranth_tpu.sim.models.shipped import SHIPPED

from ..show.documents import ROOT, put_table, table_rows
from ..show.markdown import markdown_table
from .versions import VERSION, version_of

__all__ = ["Json", "MODEL", "Write", "app", "publish", "run_command", "run_module", "run_tpu", "samples_of", "with_other_rows"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Measure the tables of results and datasheet, and print them, or with --write put them into their documents.",
)
MODEL = SHIPPED["default"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Write = Annotated[bool, typer.Option("--write", help="Put the table into its document.")]


def run_command(n, batch, *words):
    """Returns the arguments of `tpu` that simulate a row of the tables `utilisation` and `networks`."""
    return ["run", *words, "--n", str(n), "--images", str(batch), "--batch", str(batch)]


def run_module(module, *words):
    """Runs a module of this project with the arguments `words` and `--json`. Returns its JSON output as Python objects. Ends the
    process if the module fails."""
    command = [sys.executable, "-m", f"amaranth_tpu.{module}", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(words)} failed with status {done.returncode}")
    return json.loads(done.stdout)


def run_tpu(*words):
    """Runs the command `tpu` with the arguments `words` and `--json`. Returns its JSON output as Python objects; see
    :func:`run_module`."""
    return run_module("scripts.tpu", *words)


def samples_of(count):
    """Returns `count` images of digits, bfloat16 (count, rows, columns) with values from 0 to 1. The images repeat if there are
    fewer."""
    pixels, _ = load_digits()
    return preprocess(np.resize(pixels, (count, *pixels.shape[1:])), "unit").astype(bfloat16)


def publish(name, head, rows, figures, as_json, write, keys=None):
    """Prints a table, or its `figures` as JSON. If `write` is True, also writes the table into its document, with the version of
    the sources that decide it (:mod:`scripts.benchmark.versions`), unless the rows have one.

    Parameters
    ----------
    head : list of str
    rows : list of list
    keys : list of tuple or None
        First cells of all rows of the whole table, if `rows` may be some of them: the document keeps its other rows.
    """
    print(json.dumps(figures) if as_json else markdown_table(head, rows))
    if not write:
        return
    others = table_rows(name)
    if version_of(name):
        if VERSION not in head:
            head, rows = [*head, VERSION], [[*row, version_of(name)] for row in rows]
        others = [{**other, VERSION: other.get(VERSION, "")} for other in others]
    put_table(name, markdown_table(head, rows if keys is None else with_other_rows(head, rows, others, keys)))


def with_other_rows(head, rows, others, keys):
    """Returns the rows of a table in the order of `keys`, from `rows` or else from `others`, whose columns must be the same.

    Parameters
    ----------
    rows : list of list
    others : list of dict
        As :func:`scripts.show.documents.table_rows` returns them.
    keys : list of tuple
        First cells of each row.
    """
    size = len(keys[0])
    texts = [[*map(str, key)] for key in keys]
    found = [[*other.values()] for other in others if [*other] == [*map(str, head)]]
    known = {tuple(row[:size]): row for row in (*found, *([*map(str, row)] for row in rows))}
    return [known[tuple(text)] for text in texts if tuple(text) in known]
