"""Text by the shipped GPT: runs that keep the attention's state."""

import numpy as np
import pytest

from amaranth_tpu.sim.models.gpt import LAYERS, TOKENS, distances, gpt_model, state_names
from amaranth_tpu.sim.models.gpt_text import ALPHABET, SHIPPED_ALPHABET, Alphabet
from amaranth_tpu.sim.tpu.load import load
from amaranth_tpu.sim.tpu.text import PARTS, cycles_by_part, saved_model, written

PROMPT = "The import statement"


def text_by_onnx(letters):
    """Returns the most likely continuation of the prompt, by an ONNX interpreter in binary32 with the same state."""
    onnxruntime = pytest.importorskip("onnxruntime")
    prompt, letter = (
        onnxruntime.InferenceSession(gpt_model(*sizes).SerializeToString()) for sizes in ((TOKENS, 0), (1, TOKENS - 1))
    )
    outputs = prompt.run(None, {"ids": SHIPPED_ALPHABET.encoded("\n" * TOKENS + PROMPT)[None, -TOKENS:]})
    state, text = dict(zip(state_names(), outputs[1:])), []
    for _ in range(letters):
        text.append(int(outputs[0][0, -1].argmax()))
        past = {name: values[:, :, 1:] for name, values in state.items()}
        outputs = letter.run(None, {"ids": np.array([text[-1:]])} | {f"past_{name}": past[name] for name in past})
        state = {name: np.concatenate([past[name], new], axis=2) for name, new in zip(state_names(), outputs[1:])}
    return SHIPPED_ALPHABET.decoded(text)


def test_keys_and_values_as_outputs_are_computed_once():
    """A GPT with its keys and values as outputs has the multiplications of a GPT with the logits alone."""
    with_state, without = (load(saved_model(gpt_model(has_state=given))).network for given in (True, False))
    assert len(with_state.outputs) > len(without.outputs) == 1
    assert sum(with_state.macs) == sum(without.macs)


def test_alphabet_is_reversible():
    one = SHIPPED_ALPHABET
    assert one.decoded(one.encoded(ALPHABET)) == ALPHABET and len(set(ALPHABET)) == len(ALPHABET)
    assert one.decoded(one.encoded("a7b")) == "ab"


@pytest.mark.parametrize("text", ["Grüße, 7 Äpfel", "".join(map(chr, range(0x4E00, 0x4F40))), "\n"])
def test_alphabet_of_a_text(text):
    """A text's own alphabet leaves nothing out. A text with many letters has its bytes as letters."""
    one = Alphabet.of(text.encode())
    assert one.decoded(one.encoded(text)) == text
    assert one.left_out(text)[0] == 0 and one.encoded(text).max() < len(one) and len(one.encoded(one.fill)) == 1
    assert Alphabet.read(one.entry["alphabet"]) == one and Alphabet.read(None) == SHIPPED_ALPHABET
    assert (one.letters is None) == (len(text) > 256)
    decoder = one.decoder()  # a letter of several bytes comes with its last one
    assert "".join(decoder([index]) for index in one.encoded(text)) == text


def test_bytes_that_are_no_text():
    one, content = Alphabet.of(b"a\xff\xfeb"), b"a\xff\xfeb"
    assert one.letters is None and one.encoded(content).tolist() == [*content]
    assert one.decoded(one.encoded(content)) == "a\ufffd\ufffdb"


def test_distances():
    """The bias is -inf above the diagonal, and falls by 2^-2h with each letter of distance for head h from 1."""
    bias = distances(4)
    assert np.isneginf(bias[:, 0, 1:]).all() and (bias[:, range(4), range(4)] == 0).all()
    assert bias[0, 3].tolist() == [-0.75, -0.5, -0.25, 0] and bias[3, 2, 0] == -2 / 256


def test_state_names():
    assert len(state_names()) == 2 * LAYERS and state_names()[:3] == ["k_0", "v_0", "k_1"]


def test_golden_text_equals_the_text_of_an_onnx_interpreter():
    """The most likely letters equal the letters of binary32, so the state passes rightly between the runs."""
    assert "".join(letter.text for letter in written(PROMPT, 12, "golden", temperature=0)) == text_by_onnx(12)


@pytest.mark.slow
def test_temperature_and_seed_draw_letters():
    """A high temperature gives another text than the most likely letters, and the same seed the same text."""
    texts = ["".join(one.text for one in written("x", 4, "golden", temperature=heat, seed=3)) for heat in (0, 5, 5)]
    assert texts[0] != texts[1] and texts[1] == texts[2]


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["model", "verilator"])
def test_letters_on_the_core_have_the_bits_of_the_golden_model(simulator):
    runs = [letter.run for letter in written(PROMPT, 3, simulator, core="tiny", temperature=0)]
    assert [run.result.mismatched_bits for run in runs] == [0, 0, 0]
    parts = cycles_by_part(runs[-1].program)
    assert set(parts) == set(PARTS) and min(parts.values()) > 0 and sum(parts.values()) == runs[-1].program.predicted_cycles
