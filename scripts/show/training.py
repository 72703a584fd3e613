"""Terminal output of `tpu train`."""

from contextlib import ExitStack

from amaranth_tpu.sim.data.time_left import TimeLeft

from .terminal import lines, plain, show_cycles
from .terminal_tables import figure_table, print_table

__all__ = ["TrainingBar", "epoch_line", "show_training"]


class TrainingBar:
    """A progress line that is updated after each training step. It is shown during a `with` block. Without a terminal, lines are
    printed."""

    def __init__(self, console):
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._steps = self._bar.add_task("training", total=None, figures="")
        self._core = self._bar.add_task("", total=None, figures="", visible=False)
        self._lines, self._core_text, self._left = ExitStack(), "", TimeLeft("fewer epochs, or larger batches")

    def __enter__(self):
        self._bar.start()
        self._line = self._lines.enter_context(lines(self._bar.console, "training"))
        return self

    def __exit__(self, *_):
        self._lines.close()
        self._bar.stop()

    def step(self, epoch, epochs, step, steps, score):
        """Shows that a step of an epoch has finished, and the loss and accuracy of the epoch so far (`score`). Steps and epochs
        are counted from 1."""
        figures = f"loss {score.loss:.4f}" + ("" if score.accuracy is None else f", accuracy {score.accuracy:.2%}")
        self._bar.update(self._steps, completed=step, total=steps, description=f"epoch {epoch} of {epochs}", figures=figures)
        self._bar.update(self._core, visible=False)
        rest = self._left(((epoch - 1) * steps + step) / (epochs * steps))
        self._line(f"epoch {epoch} of {epochs}, step {step:,} of {steps:,}: {figures}" + (rest and f", {rest}"))

    def core(self, first, last):
        """Shows that steps `first` to `last`, counted from 1, have started on the core."""
        text = self._core_text = f"steps {first:,} to {last:,} on the core"
        self._bar.reset(self._core, total=last - first + 1, description=text, visible=True)
        self._line(text)

    def core_step(self, done, total):
        """Shows the number of steps that have finished on the core."""
        self._bar.update(self._core, completed=done, total=total)
        self._line(f"{self._core_text}: {done:,} of {total:,}")


def epoch_line(figures, training, measured):
    """Returns a line of text about one evaluation.

    Parameters
    ----------
    figures : sim.trainer.golden_training.EpochFigures
    training : sim.trainer.golden_training.Training
    measured : str or None
        Name of the sample set for the accuracy. None: the training set.
    """
    accuracy = "" if figures.measured_loss is None else f", {measured} loss {figures.measured_loss:.4f}"
    accuracy += "" if figures.accuracy is None else f", {measured} accuracy {figures.accuracy:.2%}"
    by_steps = training.plan.steps or training.plan.evaluate_every
    where = f"step {figures.steps:,} of {training.total:,}" if by_steps else f"epoch {figures.epoch} of {training.epochs}"
    return f"{where}: loss {figures.loss:.4f}{accuracy}, {figures.seconds:.1f} s"


def show_training(console, figures):
    """Prints the result of `tpu train`: the epochs and the final figures."""
    _show_epochs(console, figures)
    table = figure_table(f"Training of {plain(figures['model'])}", ("", "word"), ("", "word"), header=False)
    start = {"fresh": "fresh weights", "file": "the file's weights", "checkpoint": "a checkpoint"}[figures["start"]]
    table.add_row("samples", f"{figures['samples']:,}, {plain(figures['data']['text'])}")
    shared = f" on {figures['cores']} cores" if figures["cores"] > 1 else ""
    table.add_row("steps", f"{figures['steps']:,} of {figures['batch']} samples{shared}, from {start}")
    table.add_row("optimizer", f"{figures['optimizer']}, rate {figures['rate']:g}, {plain(figures['schedule'])}")
    if figures["best_epoch"]:
        early = "stopped early" if figures["stopped_early"] else "early stopping"
        table.add_row(early, f"the parameters are those after epoch {figures['best_epoch']}")
    if figures["final_loss"] is not None:
        table.add_row(f"{figures['accuracy_of']} loss", f"{figures['final_loss']:.4f}")
    if figures["accuracy"] is not None:
        table.add_row(f"{figures['accuracy_of']} accuracy", f"[bold]{figures['accuracy']:.2%}[/]")
    for name, value in (figures["metrics"] or {}).items():
        if not isinstance(value, list):
            table.add_row(f"{figures['accuracy_of']} {name}", f"{value:.2%}" if name.startswith("top-") else f"{value:.4g}")
    if figures.get("rtl_steps"):
        _add_comparison(table, figures)
    table.add_row("computed in", f"{figures['seconds']:.1f} s")
    for what in ("output", "checkpoint", "log", "curve"):
        if figures[what]:
            own = {True: ", in the model's own form", False: ", as a plain model", None: ""}
            table.add_row(what, f"{plain(figures[what])}{own[figures['own_form']] if what == 'output' else ''}")
    print_table(console, table)
    if figures["metrics"] and "confusion" in figures["metrics"]:
        _show_confusion(console, figures["metrics"])
    if figures["text"]:
        console.print(plain(figures["text"]), highlight=False)
    if figures.get("stalls"):
        show_cycles(console, {"busy": figures["busy"], "stalls": figures["stalls"], "cycles": figures["cycles"]})


def _show_epochs(console, figures):
    of = figures["epochs_measured_with"]
    columns = [("epoch", "figure"), ("steps", "figure"), ("rate", "figure"), ("loss", "figure")]
    names = ["accuracy in training"] + ([f"{of} loss", f"{of} accuracy"] if of else [])
    is_classified = figures["loss"] == "cross-entropy"
    columns += [(name, "figure") for name in names if is_classified or "accuracy" not in name]
    table = figure_table("Epochs", *columns, ("seconds", "figure"))
    for one in figures["epochs"]:
        measured = [f"{one['measured_loss']:.4f}", *_share(one["accuracy"])] if of else []
        table.add_row(
            str(one["epoch"]),
            f"{one['steps']:,}",
            f"{one['rate']:g}",
            f"{one['loss']:.4f}",
            *_share(one["training_accuracy"]),
            *measured,
            f"{one['seconds']:.1f}",
        )
    print_table(console, table)


def _share(value):
    return [] if value is None else [f"{value:.2%}"]


def _show_confusion(console, metrics):
    classes = range(len(metrics["confusion"]))
    columns = [
        ("class", "figure"),
        *((str(number), "figure") for number in classes),
        ("precision", "figure"),
        ("recall", "figure"),
    ]
    table = figure_table("Confusion: rows are labels, columns are answers", *columns)
    for number in classes:
        shares = (metrics[name][number] for name in ("precision", "recall"))
        row = (f"{count:,}" for count in metrics["confusion"][number])
        table.add_row(str(number), *row, *("" if share is None else f"{share:.2%}" for share in shares))
    print_table(console, table)


def _add_comparison(table, figures):
    colour = "red" if figures["mismatched_bits"] else "green"
    cells = " with native cells" if figures["cell_kind"] == "native" else ""
    where = f"on the {figures['n']} x {figures['n']} core" + (
        ", instruction by instruction" if figures["simulator"] == "model" else f", simulated by {figures['simulator']}{cells}"
    )
    bits = f"[{colour}]{figures['mismatched_bits']:,} bits different[/] in {figures['compared_values']:,} values"
    table.add_row(f"{figures['rtl_steps']:,} step{'s' * (figures['rtl_steps'] != 1)} {where}", bits)
    if figures["ring"]:
        sent = {*(figures["ring"]["words_sent"] or ())}
        text = f"; {' to '.join(f'{one:,}' for one in sorted({min(sent), max(sent)}))} counted" if sent else ""
        table.add_row("words that each core sends", f"{figures['ring']['formula']:,} by the formula{text}")
    if figures["cycles_per_step"] is not None:
        table.add_row("cycles a step", f"{figures['cycles_per_step']:,.0f}")
        table.add_row("utilisation", f"{figures['utilisation']:.2%}")
    elif figures["estimated_cycles"] is not None:
        table.add_row("estimated cycles a step", f"{figures['estimated_cycles']:,}, by the compiler's timing model")
