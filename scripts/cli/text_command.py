"""The command `tpu text`, which writes text with a character GPT that runs on the core."""

from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.sim.data.errors import DataError

from .cells_option import CellKind, cells_option, check_cells_option
from .chat_command import LANGUAGE_MODEL, model_file, shown_words
from .command_line import Json, console, show_line
from .core_options import CoreChoice
from .json_output import print_json
from .outputs import Output, check_outputs
from .run_options import SimulatorName

__all__ = ["EXAMPLES", "text"]

EXAMPLES = """
Examples:

`tpu text --prompt "The import statement"`: by the instruction-level model

`tpu text --letters 20 --simulator verilator --cells native --n 8`: on the RTL

`tpu text --model trained.onnx`: after `tpu train --model gpt -o trained.onnx`
"""


def _check_plot(path, simulator):
    """Ends the command with one line if no plot can be drawn to a file, or the simulator has no program."""
    from ..show.plots import check_plot

    check_outputs({}, Output("--plot", path))
    if simulator is SimulatorName.GOLDEN:
        raise typer.BadParameter("the golden model has no cycles; use --simulator model", param_hint="--plot")
    try:
        check_plot(path, "a plot", "plots", without=", or leave out --plot")
    except DataError as error:
        raise typer.BadParameter(str(error), param_hint="--plot") from None


def _check_prompt(prompt, alphabet, as_json):
    """Prints a line if the model's alphabet does not have all letters of a prompt. Ends the command with one line if it has
    none."""
    count, phrase = alphabet.left_out(prompt)
    if not len(alphabet.encoded(prompt)):
        letters = (alphabet.letters or "").strip()
        raise typer.BadParameter(f"it has no letter of the model's alphabet, {letters}; give some text", param_hint="--prompt")
    if count and not as_json:
        show_line(f"--prompt: without {phrase}, which are not in the model's alphabet")


def _language_text(core, prompt, letters, temperature, seed, simulator, cells, model, as_json):
    from amaranth_tpu.sim.tpu.language_model import LanguageModel
    from amaranth_tpu.sim.tpu.places import Simulator

    check_cells_option(cells, simulator.value)
    config = core.config("transformer")
    made = LanguageModel(model_file(model), Simulator(simulator.value, cells=cells.value), config)
    if not as_json:
        print(prompt, end="" if simulator is SimulatorName.GOLDEN else "\n", flush=True)
    words = made.written(made.tokens.encoded(prompt), letters, temperature, seed)
    shown_words(made, words, prompt, as_json, simulator, cells, config)


def text(
    core: CoreChoice,
    prompt: Annotated[str, typer.Option(help="Start of the text. Letters outside the model's alphabet are left out.")] = "The ",
    letters: Annotated[int, typer.Option(min=1, max=100_000, help="Number of letters to write.")] = 60,
    temperature: Annotated[
        float, typer.Option(min=0, max=10, help="Randomness of the choice. 0 takes the most likely letter.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice.")] = 1,
    simulator: Annotated[
        SimulatorName, typer.Option(metavar="NAME", help="verilator, icarus, model or golden.")
    ] = SimulatorName.MODEL,
    cells: cells_option() = CellKind.RTL,
    model: Annotated[
        Path | None,
        typer.Option(
            help="A file that `tpu train --model gpt -o FILE.onnx` wrote, with its alphabet, a GGUF file of the Llama family, "
            "or `smollm2`. Default: the shipped weights."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Picture (.svg, .png, .pdf) of the estimated cycles of the prompt and of a letter, by part."),
    ] = None,
    as_json: Json = False,
):
    """Write text with a small GPT, one letter a run, on the simulated core or a model of it.

    The network has two blocks of width 64 with four heads, and was trained on Python's help topics. The keys and values of its
    attention are outputs of a run and inputs of the next. Exits with 0 if every run has the golden model's bits.
    """
    from amaranth_tpu.sim.models.gpt_text import SHIPPED_ALPHABET
    from amaranth_tpu.sim.models.gpt_weights import read_alphabet, read_weights
    from amaranth_tpu.sim.tpu.places import Simulator
    from amaranth_tpu.sim.tpu.text import written

    if model and (str(model) == LANGUAGE_MODEL or model.suffix == ".gguf"):
        if plot:
            raise typer.BadParameter("only the small GPT has this picture; leave it out", param_hint="--plot")
        return _language_text(core, prompt, letters, temperature, seed, simulator, cells, model, as_json)
    weights = read_weights(model) if model else None
    alphabet = read_alphabet(model) if model else SHIPPED_ALPHABET
    _check_prompt(prompt, alphabet, as_json)
    check_cells_option(cells, simulator.value)
    place = Simulator(simulator.value, cells=cells.value)
    if plot:
        _check_plot(plot, simulator)
    config, cycles, shown, programs = core.config(), [], "", {}
    facts = {"core": config, "temperature": temperature, "seed": seed, "weights": weights, "alphabet": alphabet}
    for letter in written(prompt, letters, place, **facts):
        if not as_json:
            print(letter.text if cycles else prompt + letter.text, end="", flush=True)
        programs["a letter" if cycles else "the prompt"] = letter.run.program
        shown += letter.text
        cycles.append(letter.run.result.cycles or (letter.run.program and letter.run.program.predicted_cycles))
    if plot:
        from amaranth_tpu.sim.tpu.text import cycles_by_part

        from ..show.run_plots import draw_parts

        draw_parts(plot, {name: cycles_by_part(program) for name, program in programs.items()})
    figures = {
        "simulator": simulator.value,
        "cell_kind": cells.value if simulator.has_time else None,
        "prompt": prompt,
        "text": shown,
        "prompt_cycles": cycles[0],
        "letter_cycles": cycles[-1] if letters > 1 else None,
    }
    if as_json:
        print_json(figures, core=None if simulator is SimulatorName.GOLDEN else config)
        return
    print()
    if cycles[0]:
        estimated = "" if simulator.has_time else "estimated "
        console.print(
            f"{estimated}cycles: {cycles[0]:,} for the prompt"
            + (f", {cycles[-1]:,} for a letter" if letters > 1 else "")
            + "; every run has the golden model's bits"
        )
