"""The command `tpu train`: a network learns from data by the golden model; its first steps, on the core, have the same bits."""

import inspect
import json
import time
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from amaranth_tpu.sim.data.printable import printable

from ..show.curve import check_curve, draw_curve
from ..show.terminal import progress_bar, spinner
from ..show.training import epoch_line, show_training, training_bar
from .command_line import RunFailed, console, show_line, usable_file, usable_folder
from .run_data import is_convolutional
from .train_options import OptimizerKind, TrainOptions

__all__ = ["EXAMPLES", "train"]

EXAMPLES = """
Examples:

`tpu train --data DIR --rtl-steps 200 -o trained.onnx`: 784-128-10 from fresh weights, 200 steps on the RTL too

`tpu train --model a --data DIR --epochs 1 --dropout 0.5 --optimizer adam --batch 1024`

`tpu train --model M.onnx --input x.npy --labels y.npy --validation 0.1 --early-stopping 3 --checkpoint DIR --resume`
"""
_RATES = {OptimizerKind.SGD: (0.1, 0.05), OptimizerKind.ADAM: (0.001, 0.001)}  # dense, with convolutions


def train(**options):
    """Train a network by softmax cross-entropy, all steps by the golden model, the first ones on the core too.

    Exit status 0 says that it was trained to the end, that what it wrote is whole, and that in the steps on the core every bit of
    parameters and optimizer was the golden model's.
    """
    started = time.perf_counter()
    options = TrainOptions(**options)
    options.check()
    _check_places(options)
    model = _Model(options)
    with spinner(console, "reading samples"):
        data = choose_train_data(model.graph, options)
