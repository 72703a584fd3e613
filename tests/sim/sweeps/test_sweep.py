"""Tests that each point of a sweep has the figures of the compiler and Yosys, and that finished points are not computed again."""

import csv
import os
import signal
import subprocess
import sys
import time

import pytest

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.tools.process import ToolError
from amaranth_tpu.scripts.datasheet import DATASHEET
from amaranth_tpu.scripts.show.markdown import section
from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.checkpoints import CheckpointError
from amaranth_tpu.sim.data.source_digest import source_digest
from amaranth_tpu.sim.host.spread import Cluster, in_turn
from amaranth_tpu.sim.sweeps import jobs
from amaranth_tpu.sim.sweeps.sweep import Point, front, grid, run_sweep
from command import refused, write_model
from json_output import printed

FOUR = grid(["m.onnx"], [Config(n=2), Config(n=4)], [1, 3])


@pytest.fixture(autouse=True)
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "m.onnx")


def figures(points):
    return [point.figures for point in points]


def test_points():
    found = run_sweep(FOUR)
    for point in found:
        estimate = tpu.load("m.onnx").estimate(point.core, point.batch)
        assert point.figures["cycles"] == estimate.cycles and point.figures["cycles_per_sample"] == estimate.cycles / point.batch
        assert point.figures["utilisation"] == 16 * 3 * point.batch / estimate.cycles / point.core.n**2
    assert [(point.core.n, point.batch) for point in found] == [(2, 1), (2, 3), (4, 1), (4, 3)]


def test_bits_of_memory():
    """`memory_bits` equals the total of the four large memories in the datasheet's table, which is generated from the Verilog."""
    table = section(DATASHEET, "memories")
    rows = [line.split("|") for line in table.splitlines() if any(name in line for name in ("_lane.", "_column."))]
    sizes = [int(row[2]) * int(row[3].split("x")[0].replace(",", "")) * int(row[3].split("x")[1]) for row in rows]
    large = [size for size in sizes if size > 1 << 13]
    assert len(large) == 4 and sum(large) == jobs.memory_bits(Config())


def test_only_the_rest(tmp_path):
    done = []

    def counted(count):
        def spread(function, items):
            for index, result in in_turn(function, items):
                if len(done) == count:
                    raise KeyboardInterrupt
                done.append(items[index])
                yield index, result

        return spread

    whole = run_sweep(FOUR)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(FOUR, folder=tmp_path / "c", spread=counted(3))
    more = grid(["m.onnx"], [Config(n=2), Config(n=4), Config(n=8)], [1, 3])
    assert figures(run_sweep(more, folder=tmp_path / "c", spread=counted(99)))[:4] == figures(whole)
    assert len(done) == len({*done}) == 6
    write_model(tmp_path / "m.onnx", outputs=4)
    assert figures(run_sweep(FOUR, folder=tmp_path / "c", spread=counted(99))) != figures(whole) and len(done) == 10


def test_damaged(tmp_path):
    run_sweep(FOUR[:1], folder=tmp_path / "c")
    [path] = (tmp_path / "c").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(CheckpointError, match="tpu sweep|truncated"):
        run_sweep(FOUR[:1], folder=tmp_path / "c")


def test_a_core_that_is_too_small():
    [point] = run_sweep(grid(["b"], [Config(n=2, unified_buffer_depth=4, accumulator_depth=2, bias_depth=2)], [1]))
    assert "\n" not in point.figures["error"] and point.figures.get("cycles") is None
    assert front([point], "cells") == []


def test_pareto_front(rng):
    """The Pareto front of random points equals the one found by comparing all pairs."""
    drawn = rng.integers(0, 9, (40, 2)).tolist()
    points = [Point("m", Config(), 1, {"lut": lut, "cycles_per_sample": cycles}) for lut, cycles in drawn]
    places = {(one.figures["lut"], one.figures["cycles_per_sample"]) for one in points}
    best = {(x, y) for x, y in places if not any(u <= x and v <= y and (u, v) != (x, y) for u, v in places)}
    assert [(one.figures["lut"], one.figures["cycles_per_sample"]) for one in front(points, "lut")] == sorted(best)


def test_command(command, tmp_path):
    write_model(tmp_path / "k.onnx", inputs=20)
    words = ["sweep", "--model", "m.onnx,k.onnx", "--n", "2,4", "--accumulator-depth", "2,64", "--batch", "1,3"]
    done = command(*words, "--csv", tmp_path / "p.csv", "--checkpoint", "c", "--json")
    rows = printed("sweep", done.stdout)["points"]
    cores = [row["core"] for row in rows]
    assert len(rows) == 12 and {core["accumulator_depth"] for core in cores if core["n"] == 4} == {64}
    assert {row["model"]["name"] for row in rows} == {"m.onnx", "k.onnx"}
    with open(tmp_path / "p.csv") as file:
        assert [float(row["cycles"]) for row in csv.DictReader(file)] == [row["cycles"] for row in rows]
    shown = command(*words, "--checkpoint", "c")
    assert "skipped 1 invalid cores" in shown.stderr and "accumulator_depth" in shown.stderr
    assert shown.stdout.count(" * ") == sum(row["front"] for row in rows) + 1  # and one in the title
    assert f"{rows[5]['cycles']:,}" in shown.stdout


@pytest.mark.slow
def test_picture(command, tmp_path):
    assert command("sweep", "--model", "m.onnx", "--n", "2,4", "--batch", 3, "--plot", tmp_path / "f.svg").returncode == 0
    text = (tmp_path / "f.svg").read_text()
    assert "n = 2, batch 3" in text and "n = 4, batch 3" in text and "cells of the array" in text


@pytest.mark.parametrize(
    "words, said",
    [
        (["--n", "4,x"], "takes integers"),
        (["--n", "3"], "power of two"),
        (["--pooling", "on,maybe"], "takes `on` or `off`"),
        (["--batch", "0"], "numbers of at least 1"),
        (["--area", "lut"], "--synth"),
        (["--synth", "nowhere"], "nowhere"),
        (["--model", "none.onnx"], "none.onnx"),
        (["--plot", "x.txt"], ".svg"),
    ],
)
def test_refused(command, words, said):
    refused(command("sweep", *words), said)


def test_synthesis_is_done_once_a_core(monkeypatch, tmp_path):
    asked = []

    def implement(core, target, folder):
        asked.append((core.n, target.name))
        return {"lut": 100 * core.n, "ff": 1, "dsp": 2, "bram": 3, "fits": True, "other": None}

    monkeypatch.setattr(jobs, "implement", implement)
    for _ in range(2):
        found = run_sweep(FOUR, target="ecp5-85", folder=tmp_path / "c")
        assert asked == [(2, "ecp5-85"), (4, "ecp5-85")]
        assert [one.figures["lut"] for one in found] == [200, 200, 400, 400] and found[0].figures["fits"]


def test_changed_model_file():
    """A changed model file is loaded again, and a file that changes during a sweep raises an error."""
    [before] = run_sweep(FOUR[:1])
    job = jobs.CyclesJob("m.onnx", jobs.digest_of("m.onnx"), Config(n=2), 1)
    write_model("m.onnx", outputs=40)
    [after] = run_sweep(FOUR[:1])
    assert after.figures["macs"] > before.figures["macs"]
    jobs._load.cache_clear()
    with pytest.raises(ToolError, match="file differs from the sweep's"):
        job.run()


def test_cores_that_do_not_fit(command, monkeypatch):
    """Cores that do not fit the part are listed with their Yosys figures, but are never on the front."""
    monkeypatch.setattr(
        jobs, "implement", lambda core, *_: {"lut": 100 * core.n, "ff": 1, "dsp": 2, "bram": 3, "fits": core.n > 2}
    )
    words = ["sweep", "--model", "m.onnx", "--n", "2,4", "--batch", 1, "--synth", "ecp5-85"]
    assert [row["front"] for row in printed("sweep", command(*words, "--json").stdout)["points"]] == [False, True]
    assert command(*words).stdout.count("does not fit") == 1


@pytest.mark.slow
def test_the_scheduler_is_lost():
    with subprocess.Popen([sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, text=True) as scheduler:
        try:
            with Cluster(scheduler.stdout.readline().strip()) as cluster:
                found = cluster(time.sleep, [0, 100])
                assert next(found) == (0, None)
                scheduler.kill()
                with pytest.raises(ToolError, match="^tcp://[^ ]+: the scheduler is lost; [^\n]*$"):
                    next(found)
        finally:
            scheduler.kill()


SCHEDULER = """
import time
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, processes=False, protocol="tcp", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        time.sleep(200)
"""


def test_nobody_answers(monkeypatch):
    monkeypatch.setattr("amaranth_tpu.sim.host.spread._CONNECT", 0.2)
    with pytest.raises(ToolError, match="tcp://127.0.0.1:1") as caught, Cluster("tcp://127.0.0.1:1"):
        pass
    assert "\n" not in str(caught.value)


def slowly(job):
    time.sleep(0.1)
    return job.run(), os.getpid()


@pytest.mark.slow
def test_a_worker_is_killed():
    """If one of three Dask workers is killed, all forty points of the sweep are still computed."""
    write_model("k.onnx", inputs=20)
    points = grid(["m.onnx", "k.onnx"], [Config(n=n) for n in (2, 4, 8, 16)], [1, 2, 3, 4, 8])
    assert len(points) == 40
    with Cluster(workers=3) as cluster:
        assert {*cluster._client.run(source_digest).values()} == {source_digest()}
        killed, workers = [], set()

        def spread(function, items):
            for index, (result, process) in cluster(slowly, items):
                workers.add(process)
                if len(workers) == 3 and not killed:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                yield index, result

        found = run_sweep(points, spread=spread)
        # Groups of a run are distributed in the same way.
        place, x = tpu.Simulator("model", checkpoint="c", spread=cluster), [[0.5] * 16] * 5
        parts = tpu.load("m.onnx").predict(x, place, core="tiny", batch=2)
    assert (parts == tpu.load("m.onnx").predict(x)).all()
    assert killed and figures(found) == figures(run_sweep(points))


def test_difference_in_a_point_is_an_error(command, model, monkeypatch):
    """If a point's simulation differs from the golden model, the sweep exits with a non-zero status and a one-line error."""

    def wrong(self):
        raise tpu.RunError("12 bits differ from the golden model")

    monkeypatch.setattr(jobs.CyclesJob, "run", wrong)
    refused(command("sweep", "--model", "m.onnx", "--simulator", "icarus"), "12 bits differ")
