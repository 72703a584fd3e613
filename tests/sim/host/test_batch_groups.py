"""Tests that an interrupted and resumed run in groups of batches has the figures of an uninterrupted one, and that groups of
other runs are refused."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.registers import STALLS
from amaranth_tpu.hw.tools.process import ToolError, lock
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.checkpoints import CheckpointError
from amaranth_tpu.sim.host import batch_groups as parts
from amaranth_tpu.sim.host.inference import RunResult
from amaranth_tpu.sim.host.spread import in_turn
from command import SMALL, captured, refused, write_model
from command import tpu as tpu_command

CORE = Config(n=4)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Returns `(model, samples)`, with groups limited to two batches of two samples."""
    model = tpu.load(write_model(tmp_path / "m.onnx"))
    cycles = model.compile(CORE, 2).predicted_cycles
    monkeypatch.setattr(parts, "_CYCLES", 2 * cycles)
    return model, np.random.default_rng(5).random((11, 16), np.float32)


def run(small, folder=None, spread=None, core=CORE, x=None, progress=None, name="model"):
    place = tpu.Simulator(name, checkpoint=folder, spread=spread)
    return small[0].run(small[1] if x is None else x, place, core=core, batch=2, progress=progress)


class Killed(Exception):
    pass


def killed_after(count):
    def spread(function, items):
        for index, item in enumerate(items):
            if index == count:
                raise Killed
            yield index, function(item)

    return spread


def test_stopped_twice(small, tmp_path):
    whole, folder, seen = run(small), tmp_path / "c", []
    for number in (1, 2):
        with pytest.raises(Killed):
            run(small, folder, killed_after(1))
        assert len([*folder.glob("samples-*.safetensors")]) == number
    again = run(small, folder, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, 6), (6, 6)]  # only the remaining groups run
    for name, value in whole.outputs.items():
        assert again.outputs[name].tobytes() == value.tobytes()
    assert again.result.mismatched_bits == 0 and again.failure is None and again.result.cycles is None


def test_in_any_order_with_counters(small, tmp_path, monkeypatch):
    """Results and counters are read from the groups' files, regardless of their order and of the process that wrote them."""

    def simulated(network, config, rows, *, program, **_):
        logits = np.repeat(rows[:, :1].astype(np.float32), 3, axis=1)
        names = ("cycles", "busy", *(f"stall_{name}" for name in STALLS))
        batches = [dict.fromkeys(names, 1) | {"cycles": 100 + int(row * 100)} for row in rows[::2, 0].astype(float)]
        expected = logits + np.float32(1)
        return RunResult(logits, expected, None, 2.0, batches=batches, cycles_per_second=50.0, protocol_errors=1)

    monkeypatch.setattr(parts, "run_samples", simulated)
    monkeypatch.setattr(parts, "verilog_of", lambda config: "module")
    first = run(small, tmp_path / "a", name="icarus").result
    second = run(small, tmp_path / "b", lambda function, items: [*in_turn(function, items)][::-1], name="icarus").result
    third = run(small, tmp_path / "b", killed_after(0), name="icarus").result
    assert len(first.batches) == 6 and first.cycles == sum(one["cycles"] for one in first.batches) > 600
    assert first.mismatched_bits > 0 and (first.seconds, first.cycles_per_second, first.protocol_errors) == (6.0, 50.0, 3)
    for other in (second, third):
        assert other.batches == first.batches and other.logits.tobytes() == first.logits.tobytes()
        for name in ("cycles", "busy", "stalls", "utilisation", "mismatched_bits", "seconds", "protocol_errors"):
            assert getattr(other, name) == getattr(first, name)


def backwards(function, items):
    return ((index, function(item)) for index, item in reversed([*enumerate(items)]))


@pytest.mark.parametrize("spread, kept", [(in_turn, ["0000000"]), (backwards, ["0000000", "0000008"])])
def test_fault_ends_the_run(small, tmp_path, monkeypatch, spread, kept):
    """A group with a fault is not saved, and later groups do not count, in whatever order the groups run."""
    true = parts.run_samples

    def faulty(network, config, rows, **rest):
        result = true(network, config, rows, **rest)
        if rows[0, 0] == small[1].astype("bfloat16")[4, 0]:
            object.__setattr__(result, "fault", {"cause": "ADDRESS", "pc": 32, "batch": 1})
        return result

    monkeypatch.setattr(parts, "run_samples", faulty)
    for _ in range(2):
        done = run(small, tmp_path / "c", spread)
        assert done.result.fault["batch"] == 3 and len(done.result.logits) == 8 and "ADDRESS" in done.failure
        assert sorted(path.stem.partition("-")[2] for path in (tmp_path / "c").glob("*.safetensors")) == kept


def test_of_another_run(small, tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "verilog_of", lambda config: "module")
    run(small, tmp_path)
    other = tpu.load(write_model(tmp_path / "other.onnx", outputs=4)), small[1]
    for said, change in (
        ("is of other samples", {"x": small[1] + 1}),
        ("with samples 11, not 5", {"x": small[1][:5]}),
        ("was made with core tpu generate --n 4, not tpu generate --n 8", {"core": Config(n=8)}),
        ("with simulator model, not icarus", {"name": "icarus"}),
    ):
        with pytest.raises(CheckpointError, match=said):
            run(small, tmp_path, **change)
    with pytest.raises(CheckpointError, match="another network"):
        run(other, tmp_path)


def test_damaged(small, tmp_path, rng):
    run(small, tmp_path)
    path = tmp_path / "samples-0000004.safetensors"
    content = path.read_bytes()
    for length in (0, 8, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="samples-0000004"):
            run(small, tmp_path)
    turned = bytearray(content)
    turned[-1] ^= 1
    path.write_bytes(turned)
    with pytest.raises(CheckpointError, match="damaged"):
        run(small, tmp_path)
    path.unlink()
    run(small, tmp_path)
    assert path.exists()


def test_one_at_a_time(small, tmp_path):
    with lock(tmp_path / "run.lock", 1), pytest.raises(ToolError, match="another process"):
        run(small, tmp_path)


def test_what_it_does_not_go_with(command, tmp_path):
    model = write_model(tmp_path / "m.onnx")
    for said, words in (
        ("--simulator verilator, icarus or model", ["--simulator", "golden"]),
        ("--pauses needs an uninterrupted run", ["--pauses", 10]),
        ("--trace needs an uninterrupted run", ["--trace", tmp_path / "t.json"]),
        ("leave out --workers", ["--workers", 2, "--scheduler", "tcp://localhost:1"]),
        ("is a file", ["--checkpoint", model]),
    ):
        refused(command("run", "--model", model, "--images", 2, "--checkpoint", tmp_path / "c", *words), said)
    refused(command("run", "--model", model, "--workers", 2), "--checkpoint DIR")
    assert not (tmp_path / "c").exists()


@pytest.mark.slow
def test_killed_twice_in_the_rtl(digits, tmp_path):
    """A run that is killed twice during RTL simulation and resumed has the bits, cycles and stalls of an uninterrupted run."""
    folder = tmp_path / "c"
    words = ["run", *SMALL, "--model", write_model(tmp_path / "m.onnx"), "--data", digits, "--images", 10, "--batch", 1, "--json"]
    start = (
        "import sys; from amaranth_tpu.sim.host import parts; parts._CYCLES = 1; sys.argv[0] = 'tpu';"
        "from amaranth_tpu.scripts.start import main; main()"
    )
    for count in (2, 5):
        process = subprocess.Popen(
            [sys.executable, "-c", start, *map(str, words), "--checkpoint", str(folder)], start_new_session=True
        )
        deadline = time.monotonic() + 300
        while len([*folder.glob("samples-*.safetensors")]) < count:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert 5 <= len([*folder.glob("samples-*.safetensors")]) < 10
    again = captured([sys.executable, "-c", start, *map(str, words), "--checkpoint", str(folder)], timeout=600)
    found, whole = (json.loads(done.stdout) for done in (again, tpu_command(*words)))
    for figures in (found, whole):
        for name in ("seconds", "cycles_per_second"):
            del figures[name]
    assert found == whole and found["cycles"] > 0
