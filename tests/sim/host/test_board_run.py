"""Tests of `tpu run --board` and its driver against an emulated board on a pseudo-terminal, covering results, retries, and a
one-line error for each failure."""

import asyncio
import os
import termios
import tty
from dataclasses import replace

import pytest

from amaranth_tpu.hw.config import PLAIN, Config
from amaranth_tpu.sim.host.serial_link import LinkError, SerialLink
from amaranth_tpu.sim.host.serial_port import SerialPort
from command import refused, tpu, write_model
from json_output import printed
from stand_in_board import StandInBoard

CONFIG = Config(n=4, cell_stages=9, unified_buffer_depth=256, accumulator_depth=64, **PLAIN)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / "m.onnx")


def run(board, digits, model, *options, command=tpu):
    return command("run", "--board", board.name, "--model", model, "--data", digits, *options)


def test_run(digits, model):
    with StandInBoard(CONFIG) as board:
        done = run(board, digits, model, "--images", "all", "--batch", 4, "--json")
    assert done.returncode == 0, done.stderr
    figures = printed("run", done.stdout)
    assert (figures["n"], figures["images"], figures["batch"], figures["mismatched_bits"]) == (4, 10, 4, 0)
    assert (figures["board"], figures["cycles"], figures["busy"], board.runs) == (board.name, 3000, 1200, 3)


@pytest.mark.slow
def test_run_for_people(digits, model):
    with StandInBoard(CONFIG) as board:
        done = run(board, digits, model)
    assert done.returncode == 0, done.stderr
    for text in ("on the board at", "4 x 4", "0 bits different", "80.00 MHz", "batches of 10"):
        assert text in done.stdout


def test_wrong_result_is_reported(command, digits, model):
    """If the board returns one wrong bit, `tpu run` exits with 1 and reports one bit that differs."""

    class Wrong(StandInBoard):
        def _run(self):
            super()._run()
            self.memory[self.get("output_base_low")] ^= 1

    with Wrong(CONFIG) as board:
        done = run(board, digits, model, "--json", command=command)
    assert done.returncode == 1 and "1 bits differ from the golden model" in done.stderr


def test_fault(command, digits, model):
    class Faulty(StandInBoard):
        def _run(self):
            self.memory[0] = 0xFF
            super()._run()

    with Faulty(CONFIG) as board:
        done = run(board, digits, model, "--batch", 4, "--json", command=command)
    assert done.returncode == 1 and "fault ILLEGAL at pc 0x0" in done.stderr and board.runs == 1


def test_batch_for_the_memory(command, digits, model):
    """Without --batch, the batch fills the board's memory. If not even one sample fits, the error says how much memory is
    needed."""
    with StandInBoard(replace(CONFIG, unified_buffer_depth=1024), memory=1 << 14) as board:
        assert printed("run", run(board, digits, model, "--json", command=command).stdout)["batch"] == 10
    with StandInBoard(CONFIG, memory=1 << 13) as board:
        refused(
            run(board, digits, model, command=command),
            "the board's memory is too small: batches of 1 need",
            "8,192",
            "a smaller model",
        )


@pytest.mark.parametrize(
    "damage",
    [
        lambda answer: answer[:-1],
        lambda answer: answer[:4] + bytes([answer[4] ^ 1]) + answer[5:],
        lambda answer: answer[:-1] + bytes([answer[-1] ^ 0x80]),
        lambda answer: answer + b"\x5a",
        lambda answer: b"",
    ],
    ids=["lost byte", "longer", "checksum", "one more byte", "silence"],
)
def test_damaged_responses_are_retried(damage):
    """Data written to memory is read back unchanged although every fifth response is damaged, since the driver retries."""

    async def session(transport):
        # On a busy machine, further answers come too late.
        link = SerialLink(transport, baud=3_000_000, timeout=0.1, silence=0.02, retries=50)
        await link.identify()
        data = bytes(range(256)) * 16
        await link.write(0x100, data)
        return data == await link.read(0x100, len(data))

    with (
        StandInBoard(CONFIG, damage=lambda answer, index: damage(answer) if index % 5 == 3 else answer, words=64) as board,
        SerialPort(board.name, 3_000_000) as port,
    ):
        assert asyncio.run(session(port))
        assert board.answers > 33


def test_start_is_not_repeated():
    with StandInBoard(CONFIG, damage=lambda answer, index: answer[:-1]) as board, SerialPort(board.name, 3_000_000) as port:
        link = SerialLink(port, baud=3_000_000, timeout=1.0, silence=0.02)
        with pytest.raises(LinkError, match=r"^write of 4 bytes at 0x80000020: only a part of the answer came$"):
            asyncio.run(link.registers.write(0x20, 1))
        assert board.runs == 1


class Stuck:
    """A serial port that never sends its bytes, or raises `error` as if unplugged."""

    def __init__(self, error=None):
        self.error = error

    out_waiting = 1

    def write(self, data):
        if self.error:
            raise self.error

    def close(self):
        pass


@pytest.mark.parametrize(
    "stuck, said",
    [(Stuck(), "it accepted no bytes for 0.1 s"), (Stuck(termios.error(5, "Input/output error")), "Input/output error")],
)
def test_port_that_takes_nothing(monkeypatch, stuck, said):
    monkeypatch.setattr(SerialPort, "write_timeout", 0.1)
    end, other = os.openpty()
    with SerialPort(os.ttyname(other), 3_000_000) as port:
        port._port.close()
        port._port = stuck
        with pytest.raises(LinkError, match=f"^serial port /dev/pts/[0-9]+ failed: {said}$"):
            asyncio.run(port.send(b"x"))
    os.close(end)
    os.close(other)


def test_nothing_there(command, digits, model, tmp_path):
    refused(
        command("run", "--board", tmp_path / "none", "--model", model, "--data", digits),
        f"serial port {tmp_path / 'none'} could not be opened: No such file or directory; name the port of a board",
    )
    refused(command("run", "--board", "/dev/null", "--model", model, "--data", digits), "serial port /dev/null", "name the port")
    end, other = os.openpty()
    tty.setraw(other)
    refused(
        command("run", "--board", os.ttyname(other), "--model", model, "--data", digits),
        "identification: no answer within 1 s (3 attempts)",
    )
    os.close(end)
    os.close(other)


@pytest.mark.parametrize(
    "different, said",
    [
        ({"identifier": 0x12345678}, "no amaranth-tpu there: its identifier is 0x12345678"),
        ({"version": 7}, "version 7 of the serial protocol"),
        ({"registers": {"id": 5}}, "no core here: the identification register reads 0x00000005"),
        ({"registers": {"config": 0x10040F04}}, "15 lead stages"),
        ({"registers": {"accumulator_depth": 100}}, "accumulator_depth must be a power of two"),
    ],
)
def test_something_else_there(command, digits, model, different, said):
    with StandInBoard(CONFIG, **different) as board:
        refused(run(board, digits, model, command=command), said)


def test_options_that_do_not_go_together(command, digits, model):
    refused(command("run", "--board", "x", "--n", 4, "--model", model, "--data", digits), "--board")
    refused(command("run", "--board", "x", "--waves", "w.fst", "--model", model, "--data", digits), "--board")
