"""Tests that each hyperparameter is one record for `fit`, for `tpu train` and for the messages of both."""

import inspect

import pytest
from typer.testing import CliRunner

from amaranth_tpu.scripts.cli.command_line import with_options
from amaranth_tpu.scripts.tpu import app
from amaranth_tpu.sim import tpu

SAME = "epochs", "steps", "cores", "optimizer", "schedule", "dropout", "seed"
FLAGS = {name: f"--{name}" for name in SAME}
FLAGS |= {"evaluate_every": "--eval-every", "batch_size": "--batch", "learning_rate": "--rate"}


def test_arguments_of_fit_are_options_of_train():
    words = CliRunner().invoke(app, ["train", "--help"]).output.split()
    signature = inspect.signature(tpu.Model.fit).parameters
    for name, flag in FLAGS.items():
        assert flag in words and name in signature
        assert with_options(f"`{name}` is 1, not `cosine`") == f"`{flag}` is 1, not `cosine`"


def test_fit_documents_each_argument():
    """The defaults are in the signature, and each argument has its entry in the section Parameters."""
    parameters = inspect.signature(tpu.Model.fit).parameters
    documented = tpu.Model.fit.__doc__.partition("Parameters\n")[2].partition("\nRaises\n")[0].splitlines()
    assert [line.partition(" : ")[0] for line in documented if " : " in line and line[0] != " "] == [*parameters][1:]
    assert (parameters["batch_size"].default, parameters["schedule"].default) == (32, "constant")


def test_unknown_argument_of_fit_is_named_with_a_suggestion():
    with pytest.raises(tpu.ArgumentError, match="not 'batchsize'; did you mean 'batch_size'"):
        tpu.load("d").fit([], [], batchsize=3)
