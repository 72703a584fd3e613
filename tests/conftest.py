"""Fixtures and hooks for all tests. They give each test a private home directory and a seed, and repeat tests over many seeds."""

import gc
import subprocess

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

import own_home
import seeds
from command import write_idx
from one_order import draw_orders

gc.disable()  # until all tests are collected, which takes a tenth less time
own_home.enter()
_MADE = {}  # by id of a typer application: the command that typer makes of it


def pytest_addoption(parser):
    parser.addoption(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="run each test that draws random numbers with N seeds, from TPU_SEED on, until one fails",
    )


def pytest_unconfigure():
    own_home.leave()


def pytest_collection_finish():
    """Freezes the imported objects, so that the garbage collector skips them. Scanning them takes a quarter of the time of tests
    that build netlists."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    gc.enable()


def pytest_report_header():
    return f"random stimulus: TPU_SEED={seeds.FIRST}"


def pytest_runtest_protocol(item, nextitem):
    """Runs a test with each seed of :func:`seeds.rounds`, and reports the last round. Stops at a failure, or if the test uses no
    seed."""
    first, *others = seeds.rounds(item.nodeid, item.config.getoption("seeds"))
    if not others:
        seeds.go_to(first)
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for number in (first, *others):
        seeds.go_to(number)
        item._initrequest()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if any(report.failed for report in reports) or seeds.drawn() is None:
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if seeds.drawn() is not None:
        text = f"TPU_SEED={seeds.drawn()}\nMend it, then add a line to tests/failed_seeds.txt: {item.nodeid} {seeds.drawn()}"
        report.sections.append(("random stimulus", text))
    return report


@pytest.fixture(autouse=True)
def _home():
    own_home.next_home()


@pytest.fixture(autouse=True)
def _one_order(request, monkeypatch):
    """Compiles with a drawn order of instructions, except in tests with the marker `search`."""
    if not request.node.get_closest_marker("search"):
        draw_orders(monkeypatch, request.node.name)


@pytest.fixture
def seed():
    return seeds.seed()


@pytest.fixture
def rng(request):
    return np.random.default_rng([seeds.seed(), *request.node.name.encode()])


@pytest.fixture
def command(monkeypatch, capsys):
    """Returns a function that runs the command `tpu`, or another function `main`, in this process, and restores the state of the
    process. It is half a second faster than :func:`command.tpu`. typer makes its objects of the options only once."""
    from typer import main as typer_main

    from amaranth_tpu.scripts import tpu

    make = typer_main.get_command
    monkeypatch.setattr(typer_main, "get_command", lambda app: _MADE.get(id(app)) or _MADE.setdefault(id(app), make(app)))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("logging.Logger.addHandler", lambda *_: None)

    def call(*arguments, main=tpu.main):
        monkeypatch.setattr("sys.argv", ["tpu", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Writes ten random 4 x 4 images with labels 0 to 2 as IDX files, and returns their folder."""
    rng = np.random.default_rng(3)
    return write_idx(
        tmp_path_factory.mktemp("idx"), rng.integers(0, 256, (10, 4, 4), np.uint8), rng.integers(0, 3, 10).astype(np.uint8)
    )
