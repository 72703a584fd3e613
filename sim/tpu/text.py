"""Text by the shipped character GPT, letter by letter, on any backend; keys and values of the attention stay between the runs."""

import hashlib
from dataclasses import dataclass

import numpy as np

from amaranth_tpu.hw.tools.process import build_directory

from ..data.whole_files import write_file
from ..models.gpt import TOKENS, gpt_model, state_names
from ..models.gpt_text import SHIPPED_ALPHABET
from .layer_costs import expected_layers
from .load import load

__all__ = ["PARTS", "Letter", "chosen", "cycles_by_part", "saved_model", "written"]

#: Parts of the network, and the parts of the names of their layers; the first that is found counts.
PARTS = {
    "norms": ("norm",),
    "attention": ("rows.product_", "own_", "products_", "scores_", "weights_", "attended_"),
    "q, k, v, o": (".q.", ".k.", ".v.", ".projected"),
    "feed-forward": (".hidden", ".fed"),
    "logits, state": ("",),
}


@dataclass(frozen=True)
class Letter:
    """A letter, and the run that chose it.

    Parameters
    ----------
    text : str
        The letter.
    run : InferenceRun
        The run of the prompt for the first letter, then the run of one letter.
    """

    text: str
    run: object


def _model(tokens, past, weights):
    return load(gpt_model(tokens, past, weights))


def saved_model(model):
    """Saves an onnx.ModelProto as `gpt.onnx` in a folder of its own among the generated files. Returns the path."""
    content = model.SerializeToString(deterministic=True)
    path = build_directory() / "gpt" / hashlib.sha256(content).hexdigest()[:16] / "gpt.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return path


def chosen(logits, temperature, random):
    """Returns the index of the next letter: the most likely one at a temperature of 0, else drawn from the softmax."""
    if not temperature:
        return int(logits.argmax())
    weights = np.exp((logits - logits.max()) / temperature)
    return int(random.choice(len(weights), p=weights / weights.sum()))


def cycles_by_part(program):
    """Returns the estimated cycles of a program of the GPT by the parts of :data:`PARTS`: a dict of str to int."""
    cycles = dict.fromkeys(PARTS, 0)
    for layer in expected_layers(program):
        part = next(part for part, names in PARTS.items() if any(name in layer.name for name in names))
        cycles[part] += layer.cycles
    return cycles


def written(prompt, letters, on="model", *, core="default", temperature=0.5, seed=1, weights=None, alphabet=SHIPPED_ALPHABET):
    """Continues a text. Yields a :class:`Letter` for each new letter.

    The prompt runs as one batch of 32 letters; line ends fill a shorter one, and of a longer one the last 32 letters count. Each
    further letter is a run of its own, which takes the keys and values of the 31 letters before as inputs.

    Parameters
    ----------
    prompt : str
        At least one letter of the alphabet. Other letters are left out.
    letters : int
        Number of new letters.
    on, core
        Backend and configuration, as in :meth:`sim.tpu.model.Model.run`.
    temperature : float
        Divisor of the logits; 0 chooses the most likely letter.
    seed : int
        Seed of the random choice.
    weights : dict of str to array or None
        As :func:`sim.models.gpt_weights.read_weights` returns them. Default: the shipped weights.
    alphabet : Alphabet
        Alphabet of these weights. Of several bytes that are one letter, all but the last have an empty text.

    Raises
    ------
    RunError
        If bits differ from the golden model.
    """
    random, decoded = np.random.default_rng(seed), alphabet.decoder()
    ids = alphabet.encoded(alphabet.fill * TOKENS + prompt)[-TOKENS:]
    run = _model(TOKENS, 0, weights).run({"ids": ids[None]}, on, core=core).check()
    one = _model(1, TOKENS - 1, weights) if letters > 1 else None
    state = {name: run.outputs[name] for name in state_names()}
    while True:
        letter = chosen(run.outputs["logits"][0, -1], temperature, random)
        yield Letter(decoded([letter]), run)
        letters -= 1
        if not letters:
            return
        past = {f"past_{name}": values[:, :, 1:] for name, values in state.items()}
        run = one.run({"ids": np.array([[letter]]), **past}, on, core=core, batch=1).check()
        state = {name: np.concatenate([past[f"past_{name}"], run.outputs[name]], axis=2) for name in state_names()}
