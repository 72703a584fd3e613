"""Weights of a Llama model, from the blocks of its GGUF file to bfloat16."""

import numpy as np

from ..golden.arithmetic import round_bfloat16
from ..golden.weight_formats import FORMAT_NAMES, rounded_matrix

__all__ = ["LlamaWeights"]


class LlamaWeights:
    """Weights of a :class:`.GgufFile`, decoded when they are first used. The scales of RMSNorm become part of the next matrices.

    Parameters
    ----------
    file : GgufFile
    sizes : Llama
    kind : str or None
        Name of a format to which matrices are rounded.
    """

    def __init__(self, file, sizes, kind=None):
        self.tensors, self._sizes, self._format, self._made = file.tensors, sizes, FORMAT_NAMES.get(kind), {}
        self._squares = np.zeros(2)  # of errors and of weights

    @property
    def error(self):
        """Returns the relative root-mean-square error of rounding, over the matrices that were used."""
        return float(np.sqrt(self._squares[0] / max(self._squares[1], 1e-300)))

    def embedded(self, ids):
        """Returns the embeddings of tokens, float32 (tokens, width)."""
        return self.tensors["token_embd.weight"].values(np.asarray(ids))

    def block(self, number):
        """Returns the matrices of a block by name, bfloat16 (inputs, outputs)."""
        if number not in self._made:
            values = {name: self.tensors[f"blk.{number}.{name}.weight"].values() for name in self._sizes.shapes()}
            scales = dict.fromkeys(("attn_q", "attn_k", "attn_v"), values.pop("attn_norm"))
            scales |= dict.fromkeys(("ffn_gate", "ffn_up"), values.pop("ffn_norm"))
            self._made[number] = {name: self._rounded(one, scales.get(name)) for name, one in values.items()}
        return self._made[number]

    def head(self, first, count):
        """Returns the matrix of `count` logits from `first` on by name. Logits behind the last are 0."""
        key = "head", first
        if key not in self._made:
            tensor = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
            rows = tensor.values(slice(first, first + count))
            rows = np.pad(rows, ((0, count - len(rows)), (0, 0)))
            self._made[key] = {"logits": self._rounded(rows, self.tensors["output_norm.weight"].values())}
        return self._made[key]

    def _rounded(self, values, scale=None):
        """Rounds float32 values (outputs, inputs). They are transposed last, when they are smallest."""
        exact = (values if scale is None else values * scale) + np.float32(0)  # int8 has no zero of the other sign
        weights = round_bfloat16(exact)
        weights = rounded_matrix(self._format, weights.T).T if self._format else weights
        errors = weights.astype(np.float32) - exact
        self._squares += np.vdot(errors, errors), np.vdot(exact, exact)
        return np.ascontiguousarray(weights.T)
