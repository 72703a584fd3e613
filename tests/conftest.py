"""Fixtures of all tests: a home of their own, the seed of random stimulus, and repetition over many seeds."""

import gc
import os
import subprocess

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

import own_home
import seeds
from command import write_idx

own_home.enter()
#: Tests patch the compiler: a program that another test kept must not hide it. Processes that tests start inherit it.
os.environ["TPU_PROGRAMS_MB"] = "0"


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
    """Freezes the objects of imports for the garbage collector. Scanning these at every few hundred objects of a netlist takes a
    quarter of the time of tests that build hardware."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def pytest_report_header():
    return f"random stimulus: TPU_SEED={seeds.FIRST}"


def pytest_runtest_protocol(item, nextitem):
    """With `--seeds`, rounds of a test; its report is the last round's."""
    rounds = item.config.getoption("seeds")
    if rounds == 1:
        seeds.go_to(0)
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for number in range(rounds):
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
        report.sections.append(("random stimulus", f"TPU_SEED={seeds.drawn()}"))
    return report


@pytest.fixture(autouse=True)
def _home():
    """See :mod:`own_home`."""
    own_home.next_home()


@pytest.fixture
def seed():
    """See :func:`seeds.seed`."""
    return seeds.seed()


@pytest.fixture
def rng(request):
    """numpy's generator, of the seed and the test's name."""
    return np.random.default_rng([seeds.seed(), *request.node.name.encode()])


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command `tpu` in this process, which stays as it was; else as :func:`command.tpu`, and half a second faster."""
    from amaranth_tpu.scripts import tpu

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("logging.Logger.addHandler", lambda *_: None)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["tpu", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            tpu.main()
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, said.out, said.err)

    return call


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Ten images of 4 x 4 in IDX files."""
    rng = np.random.default_rng(3)
    return write_idx(
        tmp_path_factory.mktemp("idx"), rng.integers(0, 256, (10, 4, 4), np.uint8), rng.integers(0, 3, 10).astype(np.uint8)
    )
