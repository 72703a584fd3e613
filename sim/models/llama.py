"""Language models of the Llama family as ONNX models: a block of layers, and the head, which all tokens and runs share."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..data.errors import DataError

__all__ = ["HIDDEN_KEY", "Llama", "block_model", "head_model", "masked", "rotary", "state_inputs"]

HIDDEN_KEY = -1e30  # added to the scores of keys that a position must not see; finite, as all inputs are
_TILE = 16  # keys: the core reads a multiple of older keys and values without a copy


@dataclass(frozen=True)
class Llama:
    """The sizes of a model.

    Parameters
    ----------
    blocks : int
        Number of blocks of layers.
    width, hidden : int
        Channels of a token, and of the feed-forward layers.
    heads, groups, each : int
        Heads of the queries, heads of keys and values, and channels of a head.
    context, tokens : int
        Most tokens of a text, and number of different tokens.
    epsilon, base : float
        Of RMSNorm, and of the rotary angles.
    """

    blocks: int
    width: int
    hidden: int
    heads: int
    groups: int
    each: int
    context: int
    tokens: int
    epsilon: float
    base: float

    @classmethod
    def of(cls, file):
        """Reads the sizes of a :class:`.GgufFile`. Raises DataError for another family, or for rotary factors that differ."""
        family = file.fact("general.architecture", str)
        if family != "llama":
            raise DataError(f"it has the architecture {family}; models of the architecture llama can be run")
        scaling = file.fact("llama.rope.scaling.type", str, "none")
        if scaling != "none" or "rope_freqs.weight" in file.tensors:
            raise DataError("its rotary angles are scaled; models with plain rotary angles can be run")
        sizes = {
            name: file.fact(f"llama.{key}")
            for name, key in {
                "blocks": "block_count",
                "width": "embedding_length",
                "hidden": "feed_forward_length",
                "heads": "attention.head_count",
                "context": "context_length",
            }.items()
        }
        groups = file.fact("llama.attention.head_count_kv", default=sizes["heads"])
        each = file.fact("llama.rope.dimension_count", default=sizes["width"] // max(1, sizes["heads"]))
        epsilon = file.fact("llama.attention.layer_norm_rms_epsilon", float)
        base = file.fact("llama.rope.freq_base", float, 1e4)
        tokens = len(file.texts("tokenizer.ggml.tokens"))
        made = cls(**sizes, groups=groups, each=each, tokens=tokens, epsilon=epsilon, base=base)
        made._check(file)
        return made

    def shapes(self):
        """Returns the shapes of a block's tensors by name, (outputs, inputs)."""
        keys = self.groups * self.each
        return {
            "attn_norm": (self.width,),
            "attn_q": (self.heads * self.each, self.width),
            "attn_k": (keys, self.width),
            "attn_v": (keys, self.width),
            "attn_output": (self.width, self.heads * self.each),
            "ffn_norm": (self.width,),
            "ffn_gate": (self.hidden, self.width),
            "ffn_up": (self.hidden, self.width),
            "ffn_down": (self.width, self.hidden),
        }

    def _check(self, file):
        whole = self.heads > 0 and self.groups > 0 and self.heads % self.groups == 0 and self.each > 0 and self.each % 2 == 0
        if not (whole and 0 < self.blocks <= len(file.tensors) and 0 < self.epsilon < 1 and 1 < self.base < 1e9):
            raise DataError("its metadata has sizes that no model has; download the file again, or give another one")
        wanted = {f"blk.{block}.{name}.weight": shape for block in range(self.blocks) for name, shape in self.shapes().items()}
        wanted |= {"token_embd.weight": (self.tokens, self.width), "output_norm.weight": (self.width,)}
        if "output.weight" in file.tensors:
            wanted["output.weight"] = (self.tokens, self.width)
        for name, shape in wanted.items():
            if name not in file.tensors:
                raise DataError(f"it lacks the tensor {name}")
            if file.tensors[name].shape != shape:
                raise DataError(f"tensor {name} has shape {file.tensors[name].shape}, not {shape}")
        if more := sorted(set(file.tensors) - set(wanted)):
            raise DataError(f"the tensor {more[0]} is not part of a model that can be run")


def rotary(sizes, positions):
    """Returns the cosines and sines of positions, float32 (positions, channels of a head). Pairs of neighbours turn together."""
    angles = np.asarray(positions)[:, None] * sizes.base ** (-2.0 * (np.arange(sizes.each) // 2) / sizes.each)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def masked(sizes, past, known, tokens):
    """Returns what is added to scores, float32 (queries of a head of keys, keys): `known` of `past` keys before are seen, and of
    the `tokens` new ones those that are not later."""
    seen = np.zeros((tokens, past + tokens), bool)
    seen[:, past - known : past] = True
    seen[:, past:] = np.tri(tokens, dtype=bool)
    return np.tile(np.where(seen, 0, HIDDEN_KEY).astype(np.float32), (sizes.heads // sizes.groups, 1))


def state_inputs(state, tokens):
    """Returns the inputs of a block for the keys and values of `past` tokens, float32 (2, heads of keys, past, channels), by
    name. Those of the last tokens, which fill no tile, have rows of zeros for the `tokens` new ones."""
    old, inputs = state.shape[2] - state.shape[2] % _TILE, {}
    for kind, heads in zip(("keys", "values"), state):
        for number, rows in enumerate(heads):
            inputs |= {f"past_{kind}_{number}": rows[None, :old]} if old else {}
            if old < len(rows):
                inputs[f"recent_{kind}_{number}"] = np.pad(rows[old:], ((0, tokens), (0, 0)))[None]
    return inputs


class _Writer:
    def __init__(self, sizes, tokens, past, weights):
        self.sizes, self.tokens, self.past, self.weights = sizes, tokens, past, weights
        self.nodes, self.constants, self.within = [], [], "add"

    def add(self, operator, *inputs, name="", **attributes):
        name = name or f"{self.within}_{operator}_{len(self.nodes)}"
        inputs = [self.constant(one) if isinstance(one, np.ndarray) else one for one in inputs]
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, values):
        self.constants.append(numpy_helper.from_array(values, f"constant_{len(self.constants)}"))
        return self.constants[-1].name

    def dense(self, x, name):
        return self.add("MatMul", x, np.ascontiguousarray(self.weights[name].T), name=name)

    def norm(self, x, name):
        return self.add("RMSNormalization", x, self.weights[name], name=name, axis=-1, epsilon=self.sizes.epsilon)

    def heads(self, x, count):
        split = self.add("Reshape", x, np.array([0, self.tokens, count, self.sizes.each]))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def rotated(self, x, name=""):
        turn = np.kron(np.eye(self.sizes.each // 2), [[0, 1], [-1, 0]]).astype(np.float32)
        return self.add("Add", self.add("Mul", x, "cos"), self.add("Mul", self.add("MatMul", x, turn), "sin"), name=name)

    def attention(self, x):
        """Adds the attention. A head of keys has the rows of its heads of queries one after the other."""
        sizes, tokens, self.within = self.sizes, self.tokens, "rotary"
        q = self.rotated(self.heads(self.dense(x, "attn_q"), sizes.heads))
        k = self.rotated(self.heads(self.dense(x, "attn_k"), sizes.groups), "key")
        v = self.add("Identity", self.heads(self.dense(x, "attn_v"), sizes.groups), name="value")
        q, self.within = self.add("Mul", q, np.array(sizes.each**-0.5, np.float32)), "attention"
        made = [self.group(number, q, k, v) for number in range(sizes.groups)]
        made = self.add("Concat", *made, axis=1) if len(made) > 1 else made[0]
        return self.add(
            "Reshape", self.add("Transpose", made, perm=[0, 2, 1, 3]), np.array([0, tokens, sizes.heads * sizes.each])
        )

    def group(self, number, q, k, v):
        """Adds the attention of a head of keys. The core reads `past_keys` and `past_values` where the host has them, and copies
        the `recent` ones beside the new ones."""
        share, tokens, each = self.sizes.heads // self.sizes.groups, self.tokens, self.sizes.each
        q = self.add("Reshape", self.part(q, number * share, share, 1), np.array([0, share * tokens, each]))
        keys, values = (self.seen(name, number, one) for name, one in (("keys", k), ("values", v)))
        scores = [self.add("MatMul", q, self.add("Transpose", one, perm=[0, 2, 1])) for one in keys]
        scores = self.add("Concat", *scores, axis=-1) if len(scores) > 1 else scores[0]
        shares = self.add("Softmax", self.add("Add", scores, "mask"), axis=-1)
        old = self.past - self.past % _TILE
        parts = [self.part(shares, 0, old, 2)] * bool(old) + [self.part(shares, old, self.past - old + tokens, 2)]
        made = [self.add("MatMul", *pair) for pair in zip(parts, values)]
        made = self.add("Add", *made) if len(made) > 1 else made[0]
        return self.add("Reshape", made, np.array([0, share, tokens, each]))

    def seen(self, name, number, new):
        """Returns the keys or values that tokens see, in one or two parts."""
        new = self.add("Reshape", self.part(new, number, 1, 1), np.array([0, self.tokens, self.sizes.each]))
        if self.past % _TILE:
            padded = self.add("Pad", new, np.array([0, self.past % _TILE, 0, 0, 0, 0]))
            new = self.add("Add", padded, f"recent_{name}_{number}")
        return [f"past_{name}_{number}"] * (self.past >= _TILE) + [new]

    def part(self, x, first, count, axis):
        return self.add("Slice", x, *(np.array([one]) for one in (first, first + count, axis)))

    def fed(self, x):
        gate = self.dense(x, "ffn_gate")
        swish = self.add("Mul", gate, self.add("Sigmoid", gate))
        return self.dense(self.add("Mul", swish, self.dense(x, "ffn_up")), "ffn_down")

    def model(self, name, inputs, outputs):
        ends = (
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, ("batch", *shape)) for key, shape in some.items()]
            for some in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, name, *ends, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def block_model(sizes, weights, tokens, past):
    """Returns a block as an onnx.ModelProto for `tokens` new tokens after `past` tokens.

    Inputs are the hidden states `x`, the arrays of :func:`state_inputs`, the `mask` of :func:`masked`, and `cos` and `sin` of
    :func:`rotary`. Outputs are the hidden states `y`, and the new `key` and `value`.

    Parameters
    ----------
    weights : dict of str to float32 array
        By the names of :meth:`Llama.shapes`.
    """
    writer = _Writer(sizes, tokens, past, weights)
    x = writer.add("Add", "x", writer.dense(writer.attention(writer.norm("x", "attn_norm")), "attn_output"), name="attended")
    writer.add("Add", x, writer.fed(writer.norm(x, "ffn_norm")), name="y")
    made = (sizes.groups, tokens, sizes.each)
    rows = sizes.heads // sizes.groups * tokens
    state = state_inputs(np.zeros((2, sizes.groups, past, sizes.each), np.float32), tokens)
    inputs = {"x": (tokens, sizes.width)} | {name: values.shape[1:] for name, values in state.items()}
    inputs |= {"mask": (rows, past + tokens)} | dict.fromkeys(("cos", "sin"), (1, tokens, sizes.each))
    return writer.model("block", inputs, {"y": (tokens, sizes.width), "key": made, "value": made})


def head_model(sizes, weights):
    """Returns the head for one token, or a part of it, as an onnx.ModelProto: input `x`, output `logits`. `weights` has the scale
    of RMSNorm, `norm`, and the rows of the matrix that this part has, `logits`, (tokens, width)."""
    writer = _Writer(sizes, 1, 0, weights)
    writer.dense(writer.norm("x", "norm"), "logits")
    return writer.model("head", {"x": (1, sizes.width)}, {"logits": (1, len(weights["logits"]))})
