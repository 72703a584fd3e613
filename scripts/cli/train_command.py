"""The command `tpu train`: training on the golden model, with a bit-exact comparison of steps on the simulated core."""

import inspect
import time
from pathlib import Path

import typer
from rich.console import Console

from amaranth_tpu.sim.data.printable import printable
from amaranth_tpu.sim.models.shipped import SHIPPED

from ..show.curve import check_curve, draw_curve
from ..show.step_plan import plan_of_step, show_step_plan
from ..show.terminal import spinner
from ..show.training import TrainingBar, epoch_line, show_training
from .board_clock import at_clock, show_clock
from .command_line import RunFailed, console, show_line
from .faster_preset import show_faster
from .json_output import model_object, print_json
from .memory_option import host_of
from .outputs import Output, check_outputs
from .train_options import TrainOptions

__all__ = ["EXAMPLES", "train"]

_SAMPLE = 60  # letters of the text that a GPT writes after an evaluation

EXAMPLES = """
Examples:

`tpu train --data DIR --rtl-steps 200 -o trained.onnx`: 784-128-10 from new weights; 200 steps are checked on the RTL

`tpu train --model a --data DIR --epochs 10 --optimizer adam --batch 1024 --dropout 0.5 --curve a.svg`

`tpu train --model gpt --steps 900 --batch 16 --curve gpt.svg -o gpt.onnx`: a character GPT on Python's help topics

`tpu train --model c --batch 64 --explain`: why a step takes its cycles

`tpu train --data DIR --cores 8 --n 8 --batch 128 --rtl-steps 20`: eight cores in a ring, an eighth of each batch per core

`tpu train --model M.onnx --input x.npy --labels y.npy --validation 0.1 --early-stopping 3 --checkpoint DIR --resume`
"""


def train(**options):
    """Train a network, and check steps on the simulated core bit for bit.

    The golden model, a bit-exact reference in numpy, runs every step; the first `--rtl-steps` also run on the simulated core and
    are compared bit for bit. Exits with 0 if training finished, all files were written, and no bit of the parameters, optimizer
    state or logits differed.
    """
    started = time.perf_counter()
    options = TrainOptions(**options)
    options.check()
    _check_places(options)
    from .train_job import make_job  # its imports are slow

    with spinner(console, "reading the model and the samples"):
        identity = model_object(options.model)
        job = make_job(options)
    if job.data.note and not options.as_json:
        show_line(job.data.note)
    if options.explain:
        with spinner(console, "compiling a training step for the core"):
            job.compile()
            job.program = job.program.with_host(host_of(options.memory))
            plan = plan_of_step(job.program) | {"faster": job.faster_preset()}
            samples = plan["batch"] * plan["cores"]
            plan["at_clock"] = at_clock(job.program.config, plan["cycles"], samples, options.memory)
        if options.as_json:
            return print_json(plan, model=identity, core=job.program.config)
        show_step_plan(Console(), plan)
        show_clock(Console(), plan)
        return show_faster(Console(), plan)
    _go_on(job, options)
    if options.steps_to_compare != 0:
        with spinner(console, "compiling a training step for the core"):
            job.compare()
    job.open_log()
    with TrainingBar(console) as bar:
        _listen(job, bar, options)
        job.run()
    failure = job.run.failure
    figures = job.figures() | _results(job, options, failure) | {"seconds": time.perf_counter() - started}
    if options.as_json:
        print_json(figures, model=identity, core=job.program and job.program.config)
    else:
        show_training(Console(), figures)
    if failure:
        raise RunFailed(failure, [f"{printable(options.output)} is not written"] if options.output else [])


train.__signature__ = inspect.signature(TrainOptions)


def _check_places(options):
    model = SHIPPED.get(options.model) or Path(options.model)
    check_outputs(
        {
            "--model": [model],
            "--input": [options.input],
            "--labels": [options.labels],
            "--test-input": [options.test_input],
            "--test-labels": [options.test_labels],
        },
        Output("--output", options.output, (".onnx",)),
        Output("--curve", options.curve),
        Output("--checkpoint", options.checkpoint, folder=True),
        Output("--log", options.log, folder=True),
    )
    if options.curve:
        check_curve(options.curve)


def _go_on(job, options):
    """Restores the checkpoint if `--resume` is given. Raises typer.BadParameter if a checkpoint exists without `--resume`, or if
    training has finished and no step is left to compare."""
    folder = job.run.checkpoints
    if folder and not options.resume and folder.exists():
        raise typer.BadParameter(f"{printable(folder.path)} exists already: add --resume to continue it, or name another folder")
    if options.resume:
        there = job.resume()
        if job.training.done and options.steps_to_compare != 0:
            raise typer.BadParameter(
                "training has finished, so no step is left for --rtl-steps; give more --epochs or --steps, or leave --rtl-steps "
                "out"
            )
        where = f"resuming after step {job.training.step_number:,}" if there else "no checkpoint yet: starting at the first step"
        if not options.as_json:
            show_line(f"{printable(folder.path)}: {where}")


def _listen(job, bar, options):
    training = job.training

    def on_step(batch):
        if not training.position.history or training.position.history[-1].steps < training.step_number:
            score = training.score_so_far(training.step_number)
            bar.step(batch.epoch + 1, training.epochs, batch.number + 1, training.steps, score)

    def on_epoch(figures):
        if not options.as_json:
            show_line(epoch_line(figures, training, job.data.measured[1]))
            if not training.done and (text := job.sample(_SAMPLE)):
                show_line(f"  {printable(text, 200)}")

    job.run.on_step, job.run.on_epoch = on_step, on_epoch
    if job.run.comparison:
        job.run.comparison.on_run, job.run.comparison.on_progress = bar.core, bar.core_step


def _results(job, options, failure):
    """Writes the learning curve, and the trained model unless a check failed. Returns entries of `--json`: the paths of the
    written files, and `own_form`, True if the model has the graph of the original file."""
    output = options.output and not failure
    own = job.write_model(options.output) if output else None
    curve = options.curve if job.training.position.history else None
    if curve:
        draw_curve(curve, job.training, job.data.measured[1])
    return {
        "output": str(options.output) if output else None,
        "own_form": own,
        "checkpoint": job.run.checkpoints and str(job.run.checkpoints.path),
        "log": options.log and str(options.log),
        "curve": curve and str(curve),
    }
