"""The command `tpu` within the process of the tests."""

from types import SimpleNamespace

import pytest

from amaranth_tpu.scripts import tpu


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command in this process, which stays as it was: status, standard output and error."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("logging.Logger.addHandler", lambda *_: None)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["tpu", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            tpu.main()
        said = capsys.readouterr()
        return SimpleNamespace(status=ended.value.code or 0, out=said.out, err=said.err)

    return call
