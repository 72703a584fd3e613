"""Measurements of SmolLM2-135M: cycles of a token by format of the weights, and perplexity of a text."""

import numpy as np
from rich.console import Console
from rich.progress import track

from amaranth_tpu.sim.check.onnxruntime_import import import_onnxruntime
from amaranth_tpu.sim.models.llama import block_model
from amaranth_tpu.sim.tpu.language_model import LanguageModel

from ..cli.chat_command import LANGUAGE_MODEL, model_file
from ..show.documents import README
from .common import Json, Write, app, publish
from .language_token import language_core

__all__ = ["language"]

_FORMATS = (None, "mxint8", "mxfp8", "mxfp4")
_TOKENS = 256
_CLOCK = 100e6  # Hz, for tokens a second
_HEAD = [
    *("weights", "n", "cycles a token", "of the bound", "words a token", "cycles of 64 tokens"),
    *("tokens a second at 100 MHz", "MB a token", "error of weights", "perplexity"),
]


class _Binary32(LanguageModel):
    """The same weights in binary32, by onnxruntime."""

    def _run(self, part, name, shared, weights, values):
        if part == "head":
            tensors = self.weights.tensors
            x = values["x"] / np.sqrt(np.square(values["x"]).mean(axis=-1, keepdims=True) + self.sizes.epsilon)
            rows = tensors.get("output.weight", tensors["token_embd.weight"]).values(slice(name, name + self._part))
            return {"logits": x * tensors["output_norm.weight"].values() @ rows.T}
        own = {one: self.weights.tensors[f"blk.{name}.{one}.weight"].values() for one in self.sizes.shapes()}
        tokens = values["x"].shape[1]
        proto = block_model(self.sizes, own, tokens, self.window - tokens)
        values = {one: value if value.ndim == len(shape) else value[:, None] for one, value, shape in _shaped(proto, values)}
        session = import_onnxruntime().InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        return dict(zip(("y", "key", "value"), session.run(None, values), strict=True))


def _shaped(proto, values):
    for one in proto.graph.input:
        yield one.name, values[one.name].astype(np.float32), one.type.tensor_type.shape.dim


def _perplexity(model, ids):
    model.forget()
    scores = model.scores(model.hidden(ids[:-1])).astype(float)
    scores -= scores.max(axis=1, keepdims=True)
    return float(np.exp((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), ids[1:]]).mean()))


def _figure(path, kind, ids):
    config = language_core(kind)
    model = LanguageModel(path, core=config, weights=kind)
    blocks, parts = model.sizes.blocks, -(-model.sizes.tokens // 4096)
    one, many = (model._block(tokens).program(model._block(tokens).with_weights(model.weights.block(0))) for tokens in (1, 32))
    head = model._head.program(model._head.with_weights(model.weights.head(0, 4096)))

    def of(value):
        return blocks * value(one) + parts * value(head)

    return {
        "weights": kind or "bfloat16",
        "n": config.n,
        "cycles": of(lambda program: program.predicted_cycles),
        "bound": of(lambda program: program.bound),
        "words": of(lambda program: program.cost.read_beats + program.cost.write_beats) * config.bus_bytes // 4,
        "prompt_cycles": 2 * blocks * many.predicted_cycles + parts * head.predicted_cycles,  # a prompt runs 32 at a time
        "bytes": of(lambda program: len(program.model)),
        "perplexity": _perplexity(model, ids),
        "error": model.weights.error,
    }


@app.command()
def language(as_json: Json = False, write: Write = False):
    """Measure SmolLM2-135M: cycles of a token by the timing model, perplexity of the README's first 256 tokens by the golden
    model."""
    path = model_file(LANGUAGE_MODEL)
    reference = _Binary32(path)
    ids = np.array(reference.tokens.encoded(README.read_text(encoding="utf-8"))[:_TOKENS])
    figures = [_figure(path, kind, ids) for kind in track(_FORMATS, "running", console=Console(stderr=True), transient=True)]
    rows = [
        [
            *(one["weights"], one["n"], f"{one['cycles']:,}", f"{one['bound'] / one['cycles']:.1%}", f"{one['words']:,}"),
            *(f"{one['prompt_cycles']:,}", f"{_CLOCK / one['cycles']:.1f}", f"{one['bytes'] / 1e6:.0f}"),
            *(f"{one['error']:.2%}", f"{one['perplexity']:.2f}"),
        ]
        for one in figures
    ]
    rows.append(["binary32, by onnxruntime", *[""] * 8, f"{_perplexity(reference, ids):.2f}"])
    publish("language", _HEAD, rows, figures, as_json, write)
