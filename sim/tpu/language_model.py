"""Language models of the Llama family in GGUF files, token by token, on any backend. All blocks share one program."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path

import numpy as np

from ..data.errors import DataError
from ..data.gguf_file import GgufFile
from ..data.gguf_tokens import Tokens
from ..data.printable import printable
from ..golden.compiled_sums import fastest_sums
from ..golden.network import run_graph
from ..models.llama import Llama, block_model, head_model, masked, rotary, state_inputs
from ..models.llama_weights import LlamaWeights
from .cores import config_of
from .inference_run import checked
from .places import place_of
from .shared_network import SharedNetwork
from .text import chosen

__all__ = ["LanguageModel", "Word"]

_PROMPT = 32  # tokens of a prompt that run at once
_HEAD = 4096  # tokens whose logits one run computes


@dataclass(frozen=True)
class Word:
    """A token that was written.

    Parameters
    ----------
    text : str
        The text that is complete with it.
    cycles : dict of str to int
        Cycles of the run that chose it, by part: `blocks` and `head`. Empty on the golden model.
    """

    text: str
    cycles: dict


class LanguageModel:
    """A language model, which keeps the keys and values of the tokens that it has seen.

    Parameters
    ----------
    path : path
        A GGUF file with a model of the architecture llama.
    on : str or Simulator
        Backend: `golden`, `model`, `icarus` or `verilator`. All but `golden` compare each bit with the golden model.
    core : Config, str or None
        Default: the preset `transformer`.
    window : int
        Most tokens that a token sees, itself included. Older ones are forgotten.
    weights : str or None
        Format to which weights are rounded, as in :func:`sim.tpu.load.load`.

    Members
    -------
    progress : callable or None
        Called with `(done, total)` after each block and each part of the head, in calls of :meth:`logits` on a core.

    Raises
    ------
    DataError
        If the file cannot be read, or holds another kind of model. The message is one line.
    """

    def __init__(self, path, on="golden", core=None, window=256, weights=None):
        file = GgufFile(path)
        try:
            self.sizes, self.tokens = Llama.of(file), Tokens(file)
            _check_memory(file)
        except DataError as error:
            raise DataError(f"{printable(path)}: {error}") from None
        if not _PROMPT < window <= self.sizes.context:
            raise DataError(f"{printable(path)}: its window can be {_PROMPT + 1} to {self.sizes.context:,} tokens, not {window}")
        self.kind, self.window, self._place, self._config = weights, window, place_of(on), config_of(core, "transformer")
        self.weights = LlamaWeights(file, self.sizes, weights)
        self._block = lru_cache(None)(self._block_network)
        self._programs, self._sums = {}, fastest_sums()
        self._part = min(_HEAD, self.sizes.tokens)
        head = {"norm": (self.sizes.width,), "logits": (self._part, self.sizes.width)}
        self._head = SharedNetwork(partial(head_model, self.sizes), head, self._config)
        self.progress, self._ran, self._total = None, 0, 0
        self.forget()

    def _block_network(self, tokens):
        proto = partial(block_model, self.sizes, tokens=tokens, past=self.window - tokens)
        return SharedNetwork(proto, self.sizes.shapes(), self._config)

    def forget(self):
        """Forgets all tokens."""
        self.seen, self.cycles = 0, {}
        self._state = np.zeros((self.sizes.blocks, 2, self.sizes.groups, self.window - 1, self.sizes.each), np.float32)

    def _run(self, part, name, shared, weights, values):
        """Runs one block, or one part of the head, on inputs by name. Returns its outputs by name."""
        graph, rows = shared.with_weights(weights), shared.rows(values)
        if self._place.name == "golden":
            return shared.named(run_graph(graph, rows, sums=self._sums))
        key = (part, name, id(shared))
        if key not in self._programs:
            self._programs[key] = shared.program(graph)
        place, folder = self._place, self._place.checkpoint
        if folder:
            place = replace(place, checkpoint=Path(folder) / f"token-{self.seen}" / f"{part}-{name}")
        program, result = place.run(graph, rows, compiled=lambda size: self._programs[key], batch=1)
        self.cycles[part] = self.cycles.get(part, 0) + (checked(result).cycles or program.predicted_cycles)
        self._ran += 1
        if self.progress:
            self.progress(self._ran, self._total)
        return shared.named(result.logits)

    def hidden(self, ids):
        """Runs tokens through all blocks. Returns their hidden states, float32 (tokens, width)."""
        return np.concatenate([self._part_hidden(ids[first : first + _PROMPT]) for first in range(0, len(ids), _PROMPT)])

    def _part_hidden(self, ids):
        count, tokens = len(ids), 1 if len(ids) == 1 else _PROMPT
        shared, past = self._block(tokens), self.window - tokens
        x = np.zeros((tokens, self.sizes.width), np.float32)
        x[:count] = self.weights.embedded(ids)
        cos, sin = rotary(self.sizes, self.seen + np.arange(tokens))
        values = {"mask": masked(self.sizes, past, min(self.seen, past), tokens)[None], "cos": cos[None], "sin": sin[None]}
        x = x[None]
        for block in range(self.sizes.blocks):
            state = self._state[block]
            values |= {"x": x} | state_inputs(state[:, :, tokens - 1 :], tokens)
            found = self._run("blocks", block, shared, self.weights.block(block), values)
            x, new = found["y"], np.concatenate([found["key"], found["value"]])[:, :, :count]
            self._state[block] = np.concatenate([state, new], axis=2)[:, :, count:]
        self.seen += count
        return x[0, :count]

    def scores(self, hidden):
        """Returns the logits after hidden states, float32 (tokens, different tokens)."""
        parts, x = range(0, self.sizes.tokens, self._part), hidden[:, None]
        found = [self._run("head", first, self._head, self.weights.head(first, self._part), {"x": x}) for first in parts]
        return np.concatenate([one["logits"].reshape(len(hidden), -1) for one in found], axis=1)[:, : self.sizes.tokens]

    def logits(self, ids):
        """Returns the logits of the token after `ids`, float32 (different tokens,)."""
        self.cycles, self._ran = {}, 0
        self._total = self.sizes.blocks * -(-len(ids) // _PROMPT) + -(-self.sizes.tokens // self._part)
        return self.scores(self.hidden(ids)[-1:])[0]

    def written(self, ids, count, temperature=0.0, seed=1):
        """Continues tokens by up to `count` others. Yields a :class:`Word` for each, and ends before the model's own end."""
        random, text = np.random.default_rng(seed), self.tokens.decoder()
        for _ in range(count):
            token = chosen(self.logits(ids), temperature, random)
            if token == self.tokens.end:
                return
            yield Word(text(token), self.cycles)
            ids = [token]


def _check_memory(file):
    """Raises DataError if the file's weights as bfloat16 take more than half of the machine's memory."""
    needed = 2 * sum(prod(one.shape) for one in file.tensors.values())
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2 * needed
    if 2 * needed > have:
        raise DataError(
            f"its weights take {needed / 1e9:,.1f} GB as bfloat16, more than half of this machine's {have / 1e9:,.1f} GB; use a "
            "smaller model"
        )
