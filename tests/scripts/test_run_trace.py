"""Tests that the timeline of `tpu run --trace`, parsed as a trace viewer does, agrees with the core's own counters."""

import json
import sqlite3

import pytest

from amaranth_tpu.hw.spec.registers import STALLS
from command import SMALL, refused, tpu, write_model

pytestmark = pytest.mark.slow  # the fixture simulates a core for many seconds

#: SQL as for Perfetto's trace processor, for the tables below, in which a cycle takes 1,000 ns.
TRACK = "slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid)"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(scope="module")
def traced(model, digits, tmp_path_factory):
    """Traces five images in batches of two. Returns the run's figures and the trace file."""
    path = tmp_path_factory.mktemp("trace") / "run.json"
    arguments = ("--model", model, "--data", digits, "--images", 5, "--batch", 2, "--trace", path, "--json")
    done = tpu("run", *SMALL, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), path


def tables(path):
    """Loads a trace into SQLite tables by the rules of Chrome's trace event format. Returns a function from SQL to rows."""
    data = sqlite3.connect(":memory:")
    data.executescript("""
        CREATE TABLE slice (ts INT, dur INT, name TEXT, category TEXT, track_id INT);
        CREATE TABLE thread_track (id INT, utid INT); CREATE TABLE thread (utid INT, name TEXT);
        CREATE TABLE counter (ts INT, value REAL, track_id INT); CREATE TABLE counter_track (id INT, name TEXT);
    """)
    names, tracks, counters = {}, {}, {}
    events = json.loads(path.read_text())["traceEvents"]
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
    for event in events:
        if event["ph"] == "X":
            track = tracks.setdefault((event["pid"], event["tid"]), len(tracks))
            data.execute(
                "INSERT INTO slice VALUES (?, ?, ?, ?, ?)",
                (1000 * event["ts"], 1000 * event["dur"], event["name"], event["cat"], track),
            )
        elif event["ph"] == "C":
            for kind, value in event["args"].items():  # Perfetto makes one track for each value, whose name joins both words
                track = counters.setdefault((event["pid"], f"{event['name']} {kind}"), len(counters))
                data.execute("INSERT INTO counter VALUES (?, ?, ?)", (1000 * event["ts"], value, track))
    data.executemany("INSERT INTO thread VALUES (?, ?)", [(track, names[place]) for place, track in tracks.items()])
    data.executemany("INSERT INTO thread_track VALUES (?, ?)", [(track, track) for track in tracks.values()])
    data.executemany("INSERT INTO counter_track VALUES (?, ?)", [(track, name) for (_, name), track in counters.items()])
    return lambda sql: data.execute(sql).fetchall()


def test_counters_by_sql(traced):
    figures, path = traced
    query = tables(path)

    def cycles(where):
        [(total,)] = query(f"SELECT sum(dur) AS total FROM {TRACK} WHERE {where}")
        return (total or 0) / 1000

    assert cycles("thread.name = 'run'") == figures["cycles"] > 0
    assert cycles("slice.category = 'pass'") == figures["busy"] > 0
    assert cycles("thread.name = 'array' AND slice.name = 'busy'") == figures["busy"]
    for name in STALLS:
        assert cycles(f"thread.name = 'array' AND slice.name = '{name}'") == figures["stalls"][name]
    beats = dict(
        query(f"SELECT thread.name AS name, sum(dur) / 1000 AS beats FROM {TRACK} WHERE category = 'beats' GROUP BY thread.name")
    )
    assert beats == {"bus reads": figures["read_beats"], "bus writes": figures["write_beats"]}
    assert figures["trace"] == str(path) and len(query("SELECT dur FROM slice WHERE category = 'run'")) == 3

    # The integral of the counter equals the same figure.
    points = query(
        "SELECT ts, value FROM counter JOIN counter_track ON counter.track_id = counter_track.id "
        "WHERE counter_track.name = 'array utilisation %' ORDER BY ts"
    )
    area = sum((after - ts) * value for (ts, value), (after, _) in zip(points, points[1:])) / 1000 / 100
    assert area == pytest.approx(figures["busy"])


def test_each_instruction_is_one_slice(traced):
    """Every instruction is one slice on its unit's track with its fields, and slices on a track overlap only if nested."""
    _, path = traced
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    for place in tracks:
        ends = []
        for one in sorted((one for one in slices if (one["pid"], one["tid"]) == place), key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= one["ts"]:
                ends.pop()
            assert one["dur"] > 0 and (not ends or one["ts"] + one["dur"] <= ends[-1]), one
            ends.append(one["ts"] + one["dur"])
    dispatched = [one["name"] for one in slices if one["cat"] == "dispatch"]
    executed = [one for one in slices if one["cat"] == "instruction"]
    assert sorted(dispatched) == sorted([*(one["name"] for one in executed), *["HALT"] * 3])
    for one in executed:
        unit, values = tracks[one["pid"], one["tid"]], one["args"]
        assert unit == {"LOAD_WEIGHTS": "weights", "LOAD_BIAS": "load"}.get(one["name"], one["name"].lower())
        assert values["layer"] == "dense" and values["decoded"] < values["placed"] < values["begun"] < values["ended"]
    matmul = next(one for one in executed if one["name"] == "MATMUL")
    assert matmul["args"]["rows0"] * matmul["args"]["rows1"] > 0
    store = next(one for one in executed if one["name"] == "STORE")
    assert store["args"]["region"] == "OUTPUT" and store["args"]["rows"] > 0
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len(arrows) == 2 * len(executed) == 2 * len({event["id"] for event in arrows})


def test_refusals(command, model, tmp_path):
    for arguments, said in (
        (("--simulator", "model", "--trace", tmp_path / "t.json"), "--trace"),
        (("--board", "/dev/null", "--trace", tmp_path / "t.json"), "--board"),
        (("--trace", tmp_path / "none" / "t.json"), "no folder"),
    ):
        refused(command("run", "--model", model, *arguments), said)
