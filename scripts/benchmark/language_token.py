"""Measurements of one token of SmolLM2-135M: cycles by part, by the memory of a board, and in the RTL."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.rtl.host_memory import DEFAULT_HOST, parse_memory
from amaranth_tpu.sim.tpu.language_model import LanguageModel
from amaranth_tpu.sim.tpu.layer_costs import expected_layers
from amaranth_tpu.sim.tpu.places import Simulator

from ..cli.chat_command import LANGUAGE_MODEL, model_file
from ..cli.command_line import console
from ..show.plots import check_plot, colour, plot
from ..show.terminal import progress_bar
from .common import Json, Write, app, publish

__all__ = ["language_core", "language_memory", "language_parts", "language_rtl", "token_programs"]

_CLOCK = 100e6  # Hz
_SHOWN = {"bfloat16": None, "mxint8": "mxint8"}
#: Part of a token to the first words of its layers' names.
_PARTS = {
    "feed-forward": ("ffn_gate", "ffn_up", "ffn_down"),
    "projections": ("attn_q", "attn_k", "attn_v", "attn_output"),
    "attention": ("attention",),
    "rotary": ("rotary", "key"),
    "norms": ("attn_norm", "ffn_norm", "norm"),
    "head": ("logits",),
}
_COLOURS = ("blue", "orange", "green", "red", "purple", "grey")
#: Memory to a board with such a memory, and its MB.
_BOARDS = {
    None: ("one beat a cycle", "", None),
    "ddr3-1600x32": ("DDR3-1600, 32 bits", "Genesys 2", 1024),
    "ddr3-800x16": ("DDR3-800, 16 bits", "Nexys Video", 512),
    "sdram-90x16": ("SDRAM, 16 bits, 90 MHz", "ULX3S", 32),
}


def language_core(kind):
    """Returns the :class:`Config` of the tables, for a format of the weights or None.

    Products with weights of 8 or 4 bits leave the bus idle. A deep weight FIFO then holds the first keys and values of the
    attention, which are bfloat16 and keep the bus busy."""
    coded = {"weight_formats": True, "weight_rows": 2, "weight_fifo_depth": 128}
    return from_preset("transformer", n=16, **coded if kind else {})


def token_programs(model):
    """Returns `[(program, runs)]` of one token: a block, and a part of the head."""
    block, head = model._block(1), model._head
    parts = -(-model.sizes.tokens // model._part)
    one = block.program(block.with_weights(model.weights.block(0)))
    return [(one, model.sizes.blocks), (head.program(head.with_weights(model.weights.head(0, model._part))), parts)]


def _models(path):
    return {name: LanguageModel(path, core=language_core(kind), weights=kind) for name, kind in _SHOWN.items()}


def _part_of(name):
    return next(part for part, starts in _PARTS.items() if name.startswith(starts))


def _by_part(programs):
    """Returns `(cycles, words)`, Counters by part."""
    cycles, words = Counter(), Counter()
    for program, runs in programs:
        for layer in expected_layers(program):
            part = _part_of(layer.name)
            cycles[part] += runs * layer.cycles
            words[part] += runs * (layer.read_beats + layer.write_beats) * program.config.bus_bytes // 4
    return cycles, words


def _draw(path, figures):
    with plot(path, width=9, height=2.6) as (_, axes):
        for row, (cycles, _) in enumerate(figures.values()):
            left = 0
            for part, shade in zip(_PARTS, _COLOURS):
                axes.barh(row, cycles[part] / 1e6, left=left / 1e6, color=colour(shade), label=None if row else part)
                left += cycles[part]
        axes.set_axisbelow(True)
        axes.set_yticks(range(len(figures)), list(figures))
        axes.set_xlabel("million cycles of one token, n = 16")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=len(_PARTS))


@app.command()
def language_parts(
    as_json: Json = False,
    write: Write = False,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the cycles to this file (.svg, .png, .pdf).")] = None,
):
    """Cycles and words of one token of SmolLM2-135M by part, by the timing model."""
    if picture:
        check_plot(picture, "the plot of a token", "plots")
    figures = {name: _by_part(token_programs(model)) for name, model in _models(model_file(LANGUAGE_MODEL)).items()}
    if picture:
        _draw(picture, figures)
    head = ["part", *(f"{what}, {name}" for name in figures for what in ("cycles", "of all", "words"))]
    rows = []
    for part in (*_PARTS, "all"):
        row = [part]
        for cycles, words in figures.values():
            own = [sum(one.values()) if part == "all" else one[part] for one in (cycles, words)]
            row += [f"{own[0]:,}", f"{own[0] / sum(cycles.values()):.1%}", f"{own[1]:,}"]
        rows.append(row)
    values = [{"weights": name, "cycles": dict(one[0]), "words": dict(one[1])} for name, one in figures.items()]
    publish("language-parts", head, rows, values, as_json, write)


@app.command()
def language_memory(as_json: Json = False, write: Write = False):
    """Tokens a second of SmolLM2-135M with the memories of boards, by the timing model at 100 MHz."""
    figures = []
    for name, model in _models(model_file(LANGUAGE_MODEL)).items():
        programs = token_programs(model)
        needed = sum(runs * len(program.model) for program, runs in programs) / 1e6
        for memory, (title, board, size) in _BOARDS.items():
            host = parse_memory(memory) if memory else DEFAULT_HOST
            made = [(program.with_host(host), runs) for program, runs in programs]
            cycles, bound = (sum(runs * getattr(one, what) for one, runs in made) for what in ("predicted_cycles", "bound"))
            figures.append({"weights": name, "memory": title, "mb": needed, "cycles": cycles, "bound": bound})
            figures[-1] |= {"board": board, "board_mb": size, "tokens_per_second": _CLOCK / cycles}
    rows = [
        [
            *(one["weights"], f"{one['mb']:.0f}", one["memory"], f"{one['cycles']:,}", f"{one['bound'] / one['cycles']:.1%}"),
            *(f"{one['tokens_per_second']:.2f}", one["board"] and f"{one['board']}, {one['board_mb']} MB"),
            "" if not one["board"] else "yes" if one["board_mb"] > one["mb"] else "no",
        ]
        for one in figures
    ]
    head = [
        "weights",
        "MB needed",
        "memory",
        "cycles a token",
        "of the bound",
        "tokens a second",
        "a board with it",
        "it has them",
    ]
    publish("language-memory", head, rows, figures, as_json, write)


@app.command()
def language_rtl(
    checkpoint: Annotated[Path, typer.Option(help="Folder in which each simulated block is saved. The same command goes on.")],
    as_json: Json = False,
    write: Write = False,
):
    """One whole token of SmolLM2-135M in the RTL, with native cells: all blocks and the head. It takes about half an hour."""
    path, config = model_file(LANGUAGE_MODEL), language_core(None)
    golden = LanguageModel(path, core=config)
    model = LanguageModel(path, Simulator("verilator", cells="native", checkpoint=checkpoint), config)
    ids = golden.tokens.encoded("The")[:1]
    with progress_bar(console, "blocks and parts of the head") as model.progress:
        found, wanted = model.logits(ids), golden.logits(ids)
    pairs = [(found, wanted), (model._state, golden._state)]
    bits = sum(int(np.bitwise_count(one.view(np.uint32) ^ two.view(np.uint32)).sum()) for one, two in pairs)
    predicted = sum(runs * program.predicted_cycles for program, runs in token_programs(golden))
    cycles = sum(model.cycles.values())
    figure = {"blocks": model.sizes.blocks, **{f"{part}_cycles": count for part, count in model.cycles.items()}}
    figure |= {"cycles": cycles, "predicted": predicted, "values": found.size + model._state[:, :, :, -1].size, "bits": bits}
    row = [
        f"{figure['blocks']} blocks and the head",
        *(f"{figure[name]:,}" for name in ("blocks_cycles", "head_cycles", "cycles")),
    ]
    row += [f"{predicted / cycles - 1:+.2%}", f"{figure['values']:,}", bits]
    head = ["one token", "cycles of the blocks", "of the head", "all", "predicted", "logits, keys and values", "bits that differ"]
    publish("language-rtl", head, [row], [figure], as_json, write)
