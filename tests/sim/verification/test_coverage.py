"""Tests of the random jobs and of the coverage that Verilator counts."""

import dataclasses
import json
from collections import Counter

import pytest

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.spec.isa import Opcode, Region
from amaranth_tpu.scripts import coverage
from amaranth_tpu.sim.rtl.runner import SimulationError
from amaranth_tpu.sim.verification import bench
from amaranth_tpu.sim.verification.bench import CHANNELS, CoreResult
from amaranth_tpu.sim.verification.coverage import Point, Waiver, WaiverError, blocks_of, judge, read_points, read_waivers
from amaranth_tpu.sim.verification.events import expected_events, reached_events
from amaranth_tpu.sim.verification.jobs import Mismatch, Session
from amaranth_tpu.sim.verification.spoils import spoiled_region
from suites import slow

SMALL = from_preset("transformer", n=2, unified_buffer_depth=256, accumulator_depth=64, bias_depth=16, transpose=True, ring=True)


def test_spoiled_regions(seed):
    """A misaligned region, a region outside the bus and a short MODEL each fault at the first instruction that needs it."""
    session = Session(seed, from_preset("default", n=2))
    load, store = (Opcode.LOAD, {"region": Region.INPUT}), (Opcode.STORE, {"region": Region.OUTPUT})
    program, kinds = [load, store, load, (Opcode.HALT, {})], set()
    for _ in range(60):
        bases, ends = dict.fromkeys(("MODEL", "INPUT", "OUTPUT"), 64), {"MODEL": 320 + 32 * 5, "INPUT": 9, "OUTPUT": 9}
        place = spoiled_region(session, program, bases, ends)
        (name,) = (name for name in bases if bases[name] != 64 or ends[name] not in (9, 480))
        if bases[name] == 64:
            assert name == "MODEL" and 320 + 32 * place <= ends[name] < 352 + 32 * place
        else:
            assert place == (name == "OUTPUT") and (bases[name] % 8 or bases[name] >> 32)
        kinds.add((name, bases[name] == 64, bases[name] >> 32 > 0))
    assert len(kinds) >= 5


DESIGN = "module top;\n  if (a) b = 1;\nendmodule\n"


def _record(page, line, name, hier, count):
    fields = {"f": "x/design.sv", "l": line, "n": 3, "t": "toggle", "page": page, "o": name, "h": hier}
    return "C '" + "".join(f"\1{key}\2{value}" for key, value in fields.items()) + f"' {count}\n"


@pytest.fixture
def points(tmp_path):
    """Points of two instances of a module, and of a module that is a part of it."""
    path = tmp_path / "one.dat"
    path.write_text(
        "# SystemC::Coverage-3\n"
        + _record("v_toggle/tpu_a", 1, "o___05Fpc[3]:0->1", "core.x", 0)
        + _record("v_toggle/tpu_a", 1, "o___05Fpc[3]:0->1", "core.y", 2)
        + _record("v_toggle/tpu_a", 1, "o___05Fpc[3]:1->0", "core.y", 1)
        + _record("v_toggle/tpu_a", 1, "o___05Fpc[4]:0->1", "core.y", 1)
        + _record("v_toggle/tpu_a", 1, "o___05Fpc[4]:1->0", "core.y", 0)
        + _record("v_toggle/tpu_a", 1, "__0245[4]:1->0", "core.y", 0)
        + _record("v_branch/tpu_a_part", 2, "else", "core.y", 0)
    )
    return read_points([path, path], DESIGN)


def test_points_are_merged(points):
    assert {(point.module, point.name): count for point, count in points.items()} == {
        ("tpu_a", "o__pc[3]:0->1"): 4,
        ("tpu_a", "o__pc[3]:1->0"): 2,
        ("tpu_a", "o__pc[4]:0->1"): 2,
        ("tpu_a", "o__pc[4]:1->0"): 0,
        ("tpu_a_part", "if (a) b = 1; (else)"): 0,
    }
    blocks, hit, useless = judge(points, [])
    assert list(blocks) == ["a"] and not hit and not useless
    assert blocks["a"].percent("toggle") == 75 and blocks["a"].percent("branch") == 0 and blocks["a"].percent("line") == 100
    assert len(blocks["a"].missed) == 2


@pytest.mark.parametrize(
    "waiver, missed, was_hit, is_useless",
    [
        (("tpu_a", "toggle", "o__pc[4-9]", "wide"), 1, False, False),
        (("tpu_*", "toggle", "*__pc", "wide"), 1, True, False),
        (("tpu_a", "toggle", "o__pc[5-9]", "wide"), 2, False, True),
        (("tpu_a*", "branch", "if (a) * (else)", "never"), 1, False, False),
        (("tpu_b", "branch", "if (a) * (else)", "never"), 2, False, True),
    ],
)
def test_waivers(points, waiver, missed, was_hit, is_useless):
    waiver = Waiver(*waiver)
    blocks, hit, useless = judge(points, [waiver])
    assert (len(blocks["a"].missed), waiver in hit, waiver in useless) == (missed, was_hit, is_useless)


def test_a_waiver_without_reason(tmp_path):
    path = tmp_path / "waivers.txt"
    path.write_text("# a comment\n\ntpu_a | toggle | pc | wide\ntpu_a | toggle | pc |\n")
    with pytest.raises(WaiverError, match="waivers.txt:4: write"):
        read_waivers(path)


def test_blocks():
    assert blocks_of(["tpu", "tpu_ab", "tpu_a", "tpu_a_b_c"]) == {
        "tpu": "tpu", "tpu_a": "tpu_a", "tpu_ab": "tpu_ab", "tpu_a_b_c": "tpu_a"
    }  # fmt: skip
    assert Point("tpu", "toggle", 1, 1, "storage[3][17]:0->1").signal == ("storage", 17)


def rewired(verilog, port, expression):
    """Returns a core whose output `port`, of 32 bits, has the value of an expression of the former one, `inner`."""
    before, name, core = verilog.partition("\nmodule tpu (")
    ports, end, body = core.partition(");\n")
    assert body.count(f"({port})") == 1
    body = body.replace(f"({port})", "(inner)")
    return f"{before}{name}{ports}{end}  wire [31:0] inner;\n  assign {port} = {expression};\n{body}"


# promise: stride-of-one, misaligned, table-persists
@pytest.mark.parametrize("cores", slow(1, 2))
def test_jobs_on_the_rtl(monkeypatch, seed, cores):
    """Random jobs agree with the C model. A register that reads a wrong bit, and an address that changes while it is offered, are
    noticed."""
    session = Session(seed, SMALL, cores)
    for _ in range(30):
        session.draw()
    session.run(quick=True)
    text = bench.verilog_of(SMALL)
    for port, expression, error, message in (
        ("m_axi_araddr", "inner ^ {28'd0, m_axi_arready, 3'd0}", SimulationError, "AR changed"),
        ("s_axil_rdata", "inner ^ 32'd1", Mismatch, f"seed {seed}"),
    ):
        monkeypatch.setattr(bench, "verilog_of", {SMALL: rewired(text, port, expression)}.get)
        bench._program.cache_clear()
        with pytest.raises(error, match=message):
            session.run(quick=True)
    bench._program.cache_clear()


def test_events(seed):
    """Each expected event but faults and stalls is reached by drawn programs; a program without hazards reaches none."""
    session = Session(seed, SMALL, 2)
    for _ in range(60):
        session.draw()
    channels = dict.fromkeys(CHANNELS, 1)
    result = [CoreResult([0] * 30, channels, [])] * 2
    reached, expected = reached_events(SMALL, session, [result] * 60), expected_events(SMALL)
    missed = {event for event in expected if not reached[event]}
    assert len(missed) < len(expected) / 2 and ("LOAD", "WAW", "done") not in missed and ("stalled", "W") not in missed
    load = (Opcode.LOAD, {"region": Region.INPUT, "rows": 2, "offset": 0, "buffer": 3})
    session.trials = [dataclasses.replace(session.trials[0], program=[load, (Opcode.HALT, {})])]
    assert set(reached_events(SMALL, session, [[CoreResult([0] * 30, {}, [])] * 2])) == set()
    session.trials[0].program.insert(1, (Opcode.STORE, {"region": Region.OUTPUT, "rows": 1, "offset": 0, "buffer": 4}))
    assert set(reached_events(SMALL, session, [[CoreResult([0] * 30, {}, [])] * 2])) == {("STORE", "RAW", "done")}


def test_an_interrupted_run_resumes(monkeypatch, tmp_path):
    """Simulations that have ended are not run again. Their points add up, and their events steer the next ones."""
    sessions, event, point = [], ("STORE", "RAW", "done"), Point("tpu", "line", 1, 1, "if (a)")

    def simulated(path, session, verilog, quick):
        if len(sessions) == 1:
            raise SimulationError("it was interrupted")
        sessions.append(session)
        path.write_text(json.dumps({"points": [["tpu", "line", 1, 1, "if (a)", 2]], "events": [[*event, 3]]}))

    monkeypatch.setattr(coverage, "verilog_of", lambda config: DESIGN)
    monkeypatch.setattr(coverage, "directed_jobs", lambda config, cores: [])
    monkeypatch.setattr(coverage, "_simulated", simulated)
    with pytest.raises(SimulationError):
        coverage.measure("training", 2, 6, 7, tmp_path, lambda *_: None)
    sessions.append(None)
    counts, events = coverage.measure("training", 2, 6, 7, tmp_path, lambda *_: None)
    assert [(one.seed, one.cores, len(one.trials)) for one in sessions if one][1:] == [(8, 1, 2), (9, 3, 0), (10, 8, 0)]
    assert counts[point] == 8 and event not in sessions[2].missed and events[event] == 12 and not events["LOAD", "WAW", "done"]


def test_command(monkeypatch, tmp_path, command, points):
    """The command prints percentages in 80 columns, writes the page, and refuses waivers that are useless or were hit."""
    page, waivers = tmp_path / "hw" / "coverage.md", tmp_path / "waivers.txt"
    page.parent.mkdir()
    page.write_text("<!-- begin coverage -->\n<!-- end coverage -->\n")
    waivers.write_text("tpu_a | toggle | o__pc[4-4] | no such bit\n")
    monkeypatch.setenv("TPU_BUILD", str(tmp_path))
    monkeypatch.setattr(coverage, "ROOT", tmp_path)
    monkeypatch.setattr(coverage, "measure", lambda *_: (points, Counter({("LOAD", "RAW", "done"): 0})))
    monkeypatch.setattr(coverage, "read_waivers", lambda: read_waivers(waivers))
    done = command("training", "--missed", "--seed", "3", main=coverage.main)
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 80
    assert "75.0" in done.stdout and "100.0" in done.stdout and "events reached: 0 of 1\n" in done.stdout
    assert "tpu_a_part line 2: if (a) b = 1; (else)\nevent LOAD RAW done\n" in done.stdout
    assert command("--write", main=coverage.main).returncode == 0
    assert "| default | a | 100.0 | 0.0 | 75.0 | 100.0 |" in page.read_text() and "`default` 0 of 1" in page.read_text()
    for text, problem in (("o__pc[3-3]", "waived but hit: tpu_a o__pc[3-3], o__pc[3]"), ("o__pc[5-5]", "waives nothing")):
        waivers.write_text(f"tpu_a | toggle | {text} | a reason\n")
        done = command("--json", main=coverage.main)
        assert done.returncode == 1 and problem in done.stderr
        assert json.loads(done.stdout)["cores"]["training"]["a"]["toggle"] == {"points": 4, "hit": 3}
    assert "no core 'small'; choose from default" in command("small", main=coverage.main).stderr
    assert "n must be 2 or 4" in command("--n", "8", main=coverage.main).stderr
