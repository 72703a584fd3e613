"""GGUF files of small Llama models with random weights, written by the package gguf, and their logits in binary64."""

import gguf
import numpy as np

__all__ = ["WORDS", "language_file", "logits"]

SIZES = {"blocks": 2, "width": 64, "hidden": 96, "heads": 4, "groups": 2, "each": 16}
#: Texts of the tokens behind the 256 bytes: two merges, and the marks of a dialogue.
WORDS = ["he", "hel", "<|im_start|>", "<|im_end|>"]
_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>"
_KINDS = {"attn_q": "Q8_0", "attn_k": "Q4_0", "ffn_up": "Q4_1", "ffn_down": "F16"}


def _bytes():
    """Returns the letters that stand for the 256 bytes in tokenizers of GPT-2."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def _shapes(sizes):
    width, keys = sizes["width"], sizes["groups"] * sizes["each"]
    return {
        "attn_norm": (width,),
        "attn_q": (sizes["heads"] * sizes["each"], width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, sizes["heads"] * sizes["each"]),
        "ffn_norm": (width,),
        "ffn_gate": (sizes["hidden"], width),
        "ffn_up": (sizes["hidden"], width),
        "ffn_down": (width, sizes["hidden"]),
    }


def language_file(path, rng, tied=True, **changes):
    """Writes a file, and returns `(tensors, sizes)`: float32 arrays by name, as the file has them. `changes` replaces sizes, or
    facts of the metadata."""
    sizes = SIZES | {name: value for name, value in changes.items() if name in SIZES}
    names = _bytes() + WORDS
    writer = gguf.GGUFWriter(path, changes.get("family", "llama"))
    writer.add_block_count(sizes["blocks"])
    writer.add_context_length(256)
    writer.add_embedding_length(sizes["width"])
    writer.add_feed_forward_length(sizes["hidden"])
    writer.add_head_count(sizes["heads"])
    writer.add_head_count_kv(sizes["groups"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e3)
    writer.add_rope_dimension_count(sizes["each"])
    writer.add_tokenizer_model(changes.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(names)
    writer.add_token_types([1] * 258 + [3, 3])
    writer.add_token_merges(["h e", "he l"])
    writer.add_eos_token_id(259)
    writer.add_chat_template(_TEMPLATE)
    shapes = {f"blk.{block}.{name}.weight": shape for block in range(sizes["blocks"]) for name, shape in _shapes(sizes).items()}
    shapes |= {"token_embd.weight": (len(names), sizes["width"]), "output_norm.weight": (sizes["width"],)}
    shapes |= {} if tied else {"output.weight": (len(names), sizes["width"])}
    tensors = {}
    for name, shape in shapes.items():
        values = rng.normal(1 if len(shape) == 1 else 0, 0.1 if len(shape) == 1 else shape[1] ** -0.5, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType[_KINDS.get(name.split(".")[-2], "F32")]
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        tensors[name] = gguf.quants.dequantize(data, kind).reshape(shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors, sizes


def _normed(x, scale):
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-5) * scale


def logits(tensors, sizes, ids):
    """Returns the logits after each token, float64 (tokens, different tokens), by complex rotations and one loop over heads."""
    x, each, share = tensors["token_embd.weight"][ids].astype(float), sizes["each"], sizes["heads"] // sizes["groups"]
    turns = np.exp(1j * np.arange(len(ids))[:, None] * 1e3 ** (-np.arange(0, each, 2) / each))
    for block in range(sizes["blocks"]):
        part = {name: tensors[f"blk.{block}.{name}.weight"].astype(float) for name in _shapes(sizes)}
        h = _normed(x, part["attn_norm"])
        q, k, v = (h @ part[name].T for name in ("attn_q", "attn_k", "attn_v"))
        heads = []
        for head in range(sizes["heads"]):
            own, group = slice(head * each, (head + 1) * each), slice(head // share * each, (head // share + 1) * each)
            turned = [(one[:, 0::2] + 1j * one[:, 1::2]) * turns for one in (q[:, own], k[:, group])]
            scores = (turned[0] @ turned[1].conj().T).real / np.sqrt(each)
            shares = np.exp(np.where(np.tri(len(ids)) > 0, scores, -np.inf))
            heads.append(shares / shares.sum(axis=1, keepdims=True) @ v[:, group])
        x = x + np.concatenate(heads, axis=1) @ part["attn_output"].T
        h = _normed(x, part["ffn_norm"])
        gate = h @ part["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part["ffn_up"].T)) @ part["ffn_down"].T
    return _normed(x, tensors["output_norm.weight"]) @ tensors.get("output.weight", tensors["token_embd.weight"]).T
