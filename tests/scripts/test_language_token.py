"""Test of the table of a whole token on a core, with a small model."""

import json
from functools import partial

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.scripts.benchmark import language_token
from amaranth_tpu.sim.tpu.language_model import LanguageModel
from amaranth_tpu.sim.tpu.places import Simulator
from language_files import language_file


@pytest.mark.slow
def test_a_token_on_a_core_has_the_golden_bits(tmp_path, rng, monkeypatch, capsys):
    """The command also resumes: the second call simulates nothing."""
    language_file(tmp_path / "m.gguf", rng, blocks=1)
    monkeypatch.setattr(language_token, "model_file", lambda name: tmp_path / "m.gguf")
    monkeypatch.setattr(language_token, "language_core", lambda kind: from_preset("transformer", n=4))
    monkeypatch.setattr(language_token, "LanguageModel", partial(LanguageModel, window=48))
    monkeypatch.setattr(language_token, "Simulator", lambda name, cells, checkpoint: Simulator("model", checkpoint=checkpoint))
    language_token.language_rtl(tmp_path / "run", as_json=True)
    (figure,) = json.loads(capsys.readouterr().out)
    assert figure["bits"] == 0 and figure["blocks"] == 1 and figure["cycles"] == figure["predicted"]
    monkeypatch.setattr("amaranth_tpu.sim.host.batch_groups.run_samples", None)
    language_token.language_rtl(tmp_path / "run", as_json=True)
    assert json.loads(capsys.readouterr().out) == [figure]
