"""Tests that the verification plan names the evidence of each promise, and refuses promises without evidence."""

import pytest

from amaranth_tpu.scripts.publish import verification_plan as plan

_TEXT = """
Two sentences. The *bus* `never`
stalls.<!-- promise: no-stall --> A third one.

* **Order.** Beats arrive in order.<!-- promise: order -->
"""


def test_a_promise_is_the_sentence_before_its_mark():
    assert plan.promises(_TEXT) == {"no-stall": "The *bus* `never` stalls.", "order": "Beats arrive in order."}


def test_evidence_is_the_test_claim_or_event_below_its_comment(tmp_path):
    files = {
        "tests/hw/test_bus.py": "# promise: no-stall, order\n@pytest.mark.slow\ndef test_no_pause(rng):",
        "sim/proofs/bus.py": '    # promise: order\n    "beats keep their order": fact',
        "sim/verification/events.py": "    # promise: order (each channel)",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = plan.evidence(tmp_path)
    tests, proofs, events = plan._KINDS
    assert found["no-stall"] == {tests: ["test_bus: no pause"], proofs: [], events: []}
    assert found["order"] == {tests: ["test_bus: no pause"], proofs: ["bus: beats keep their order"], events: ["each channel"]}


@pytest.mark.parametrize(
    "text, found, message",
    [
        (_TEXT, {"order": {}}, "promise 'no-stall' of the datasheet has no evidence"),
        (_TEXT, {"no-stall": {}, "order": {}, "fast": {}}, "no promise of the datasheet is named 'fast'"),
        (_TEXT + _TEXT, {}, "no-stall: two promises"),
    ],
)
def test_gaps_are_refused(tmp_path, monkeypatch, text, found, message):
    (tmp_path / "README.md").write_text(text)
    monkeypatch.setattr(plan, "DATASHEET", tmp_path / "README.md")
    monkeypatch.setattr(plan, "evidence", lambda: found)
    with pytest.raises(ValueError, match=message):
        plan.verification_plan()
