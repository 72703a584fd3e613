"""Tests of language models in GGUF files: logits against binary64, bits of the core, tokens, and files that are refused."""

import json
import struct

import numpy as np
import pytest
from ml_dtypes import bfloat16

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.data.gguf_file import GgufFile
from amaranth_tpu.sim.data.gguf_tokens import Tokens
from amaranth_tpu.sim.models.llama import Llama, block_model
from amaranth_tpu.sim.tpu import load
from amaranth_tpu.sim.tpu.language_model import LanguageModel
from command import refused
from language_files import WORDS, language_file, logits

CORE = from_preset("transformer", n=4)


def _error(found, wanted):
    return np.sqrt(np.square(found - wanted).mean() / np.square(wanted).mean())


@pytest.mark.parametrize("tied", [True, False])
def test_prompt_and_tokens_have_the_logits_of_binary64(tmp_path, rng, tied):
    """A prompt of more than one part, and single tokens after it."""
    tensors, sizes = language_file(tmp_path / "m.gguf", rng, tied)
    model, ids = LanguageModel(tmp_path / "m.gguf", core=CORE, window=64), rng.integers(0, 256, 44)
    wanted = logits(tensors, sizes, ids)
    found = [model.logits(ids[:40]), *(model.logits(ids[place : place + 1]) for place in range(40, 44))]
    assert max(_error(one, right) for one, right in zip(found, wanted[39:])) < 0.05
    assert 0 < model.weights.error < 2**-8
    model.forget()
    assert np.array_equal(model.logits(ids[:40]), found[0])


def test_older_tokens_are_forgotten(tmp_path, rng):
    """A model of one block sees the window alone."""
    tensors, sizes = language_file(tmp_path / "m.gguf", rng, blocks=1)
    model, ids = LanguageModel(tmp_path / "m.gguf", core=CORE, window=33), rng.integers(0, 256, 36)
    model.logits(ids[:32])
    for place in range(32, 36):
        found = model.logits(ids[place : place + 1])
    near, far = (_error(found, logits(tensors, sizes, some)[-1]) for some in (ids[3:], ids))
    assert near < 0.05 and near < far


def test_bits_of_the_core(tmp_path, rng):
    """All blocks have the golden model's bits, and share their instructions."""
    language_file(tmp_path / "m.gguf", rng)
    golden, model = (LanguageModel(tmp_path / "m.gguf", on, CORE, window=48) for on in ("golden", "model"))
    ids, seen = rng.integers(0, 256, 5), []
    model.progress = lambda *done: seen.append(done)
    for some in (ids, ids[:1]):
        assert np.array_equal(golden.logits(some), model.logits(some))
    assert seen == 2 * [(1, 3), (2, 3), (3, 3)]
    assert set(model.cycles) == {"blocks", "head"} and not golden.cycles
    programs = [model._programs["blocks", block, id(model._block(1))] for block in range(2)]
    assert programs[0].ops[0] is programs[1].ops[0] and programs[0].model != programs[1].model


@pytest.mark.parametrize("tokens", [1, 32])
def test_exchanged_weights_are_those_that_the_reader_makes(tmp_path, rng, tokens):
    tensors, _ = language_file(tmp_path / "m.gguf", rng, heads=6, groups=2)
    model = LanguageModel(tmp_path / "m.gguf", core=from_preset("transformer", normalize=False), window=48)
    weights = {name: tensors[f"blk.1.{name}.weight"] for name in model.sizes.shapes()}
    wanted = load(block_model(model.sizes, weights, tokens, 48 - tokens), effort="fast").network
    found = model._block(tokens).with_weights(model.weights.block(1))
    for name, values in wanted.constants.items():
        assert np.array_equal(found.constants[name].astype(float), values.astype(float)), name


def test_weights_in_a_format(tmp_path, rng):
    """32 inputs of an output share a scale. The error of the weights is told, and the core has the golden model's bits."""
    tensors, _ = language_file(tmp_path / "m.gguf", rng)
    core = from_preset("transformer", n=8, weight_formats=True)
    golden, model = (LanguageModel(tmp_path / "m.gguf", on, core, 48, "mxint8") for on in ("golden", "model"))
    assert np.array_equal(golden.logits([7]), model.logits([7]))
    assert 2**-9 < golden.weights.error < 0.03
    values = tensors["blk.0.ffn_down.weight"].astype(bfloat16).astype(float)
    blocks = values.reshape(len(values), -1, 32)
    unit = np.exp2(np.floor(np.log2(np.abs(blocks).max(axis=2, keepdims=True))) - 6)
    wanted = (np.clip(np.rint(blocks / unit), -127, 127) * unit).reshape(values.shape).T
    assert np.array_equal(golden.weights.block(0)["ffn_down"].astype(float), wanted)


def test_tokens(tmp_path, rng):
    language_file(tmp_path / "m.gguf", rng)
    tokens = LanguageModel(tmp_path / "m.gguf", core=CORE, window=48).tokens
    assert tokens.encoded("hello 42") == [257, *map(ord, "lo 42")]
    start, end = 256 + WORDS.index("<|im_start|>"), 256 + WORDS.index("<|im_end|>")
    dialogue = tokens.dialogue("hé", "be brief")
    assert dialogue.count(start) == 3 and dialogue.count(end) == 2 and dialogue[-1] == start and tokens.end == end
    text, pieces = tokens.decoder(), tokens.encoded("naïve 東京")
    assert "".join(map(text, pieces)) == "naïve 東京"


def test_command(command, tmp_path, rng):
    language_file(tmp_path / "m.gguf", rng)
    options = "--model", tmp_path / "m.gguf", "--n", 4, "--json"
    done = command("chat", "hello", "--tokens", 3, "--window", 48, "--simulator", "model", *options)
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["prompt"] == "hello" and answer["prompt_cycles"] > 1000
    done = command("text", "--prompt", "hello", "--letters", 3, "--simulator", "golden", *options)
    assert done.returncode == 0 and json.loads(done.stdout)["prompt"] == "hello"


def test_command_without_a_model(command, tmp_path):
    refused(command("chat", "hello", "--model", tmp_path / "none.gguf"), "No such file")


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"family": "gemma"}, "architecture gemma"),
        ({"tokenizer": "llama"}, "tokenizer is llama"),
        ({"heads": 3, "groups": 2}, "sizes that no model has"),
        ({"each": 15, "width": 32}, "sizes that no model has"),
    ],
)
def test_other_models_are_refused(tmp_path, rng, changes, said):
    language_file(tmp_path / "m.gguf", rng, **changes)
    with pytest.raises(DataError, match=said) as error:
        LanguageModel(tmp_path / "m.gguf")
    assert "\n" not in str(error.value) and str(error.value).count("m.gguf") == 1


def test_models_larger_than_memory_are_refused(tmp_path, rng, monkeypatch):
    language_file(tmp_path / "m.gguf", rng)
    monkeypatch.setattr("os.sysconf", lambda name: 16)
    with pytest.raises(DataError, match="use a smaller model"):
        LanguageModel(tmp_path / "m.gguf")


def test_damaged_files_are_refused(tmp_path, rng):
    """Each cut of the header and of the weights, and changed bytes: a DataError of one line, or a file that is still whole."""
    language_file(tmp_path / "m.gguf", rng, blocks=1)
    whole = (tmp_path / "m.gguf").read_bytes()
    for cut in [0, 3, *rng.integers(4, len(whole) - 1, 40)]:
        (tmp_path / "cut.gguf").write_bytes(whole[:cut])
        with pytest.raises(DataError) as error:
            LanguageModel(tmp_path / "cut.gguf")
        assert "\n" not in str(error.value) and str(error.value).count("cut.gguf") == 1
    for place in rng.integers(0, 3000, 60):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "changed.gguf").write_bytes(changed)
        try:
            LanguageModel(tmp_path / "changed.gguf", core=CORE, window=48)
        except DataError as error:
            assert "\n" not in str(error)


def _number(key, kind, value):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack(f"<I{kind}", {"I": 4, "f": 6}[kind], value)


@pytest.mark.parametrize(
    "facts, said",
    [
        ([_number("general.alignment", "I", 0)], "general.alignment must be a positive multiple of 8"),
        ([_number("general.alignment", "I", 12)], "general.alignment must be a positive multiple of 8"),
        ([_number("general.alignment", "f", np.nan)], "general.alignment must be a positive multiple of 8"),
        (2 * [_number("llama.block_count", "I", 1)], "'llama.block_count' twice"),
    ],
)
def test_headers_that_are_wrong_are_refused(tmp_path, facts, said):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(facts)) + b"".join(facts))
    with pytest.raises(DataError, match=f"m.gguf.*{said}"):
        GgufFile(tmp_path / "m.gguf")


def test_facts_of_other_types_are_refused(tmp_path, rng):
    """Each fact of the metadata becomes a text, a list or another number: a DataError of one line, or a model."""
    language_file(tmp_path / "m.gguf", rng, blocks=1)
    file = GgufFile(tmp_path / "m.gguf")
    facts = file.facts
    for key in facts:
        for wrong in ("", "{% for", [1], np.zeros(2), np.inf, np.nan, 0, -1):
            file.facts = facts | {key: wrong}
            try:
                Llama.of(file)
                tokens = Tokens(file)
                assert len(tokens.dialogue("a") if key == "tokenizer.chat_template" else tokens.encoded("a"))
            except DataError as error:
                assert "\n" not in str(error)


def test_message_of_a_damaged_weight_names_file_and_tensor(tmp_path, rng):
    language_file(tmp_path / "m.gguf", rng, blocks=1)
    first = GgufFile(tmp_path / "m.gguf").tensors["blk.0.attn_q.weight"].data.tobytes()[:64]
    (tmp_path / "m.gguf").write_bytes((tmp_path / "m.gguf").read_bytes().replace(first, b"\xff" * 64))
    with pytest.raises(DataError, match="m.gguf: tensor 'blk.0.attn_q.weight': a scale"):
        LanguageModel(tmp_path / "m.gguf", core=CORE, window=48).weights.block(0)
