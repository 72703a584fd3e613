"""Tests of .npy and .npz files, covering files of other kinds, damaged headers, and replacement of existing files."""

import io
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from amaranth_tpu.sim.data.array_files import read_array, read_samples, write_array
from amaranth_tpu.sim.data.digits import DataError
from amaranth_tpu.sim.frontend.load import load_network
from amaranth_tpu.sim.models.shipped import SHIPPED


@pytest.mark.parametrize("content, said", [(b"hello", "not a .npy or .npz"), ("object", "holds Python objects, not numbers")])
def test_files_without_an_array_of_numbers(tmp_path, content, said):
    """A file that is not .npy or .npz, or that holds Python objects, raises an error with this project's text instead of
    numpy's."""
    path = tmp_path / "x.npy"
    np.save(path, np.array([None]), allow_pickle=True) if content == "object" else path.write_bytes(content)
    with pytest.raises(DataError, match=said):
        read_array(path)


@pytest.mark.parametrize("content, said", [(None, "No such file"), (b"hello", "not a .npy or .npz file"), ((3, 5), "do not fit")])
def test_a_message_names_the_file_once(tmp_path, content, said):
    """An error about a missing, foreign or wrongly shaped file of samples contains the file's path exactly once."""
    path = tmp_path / "x.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        np.save(path, np.zeros(content, np.float32))
    with pytest.raises(DataError, match=said) as caught:
        read_samples(path, load_network(SHIPPED["d"]))
    assert str(caught.value).count(str(path)) == 1


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/y.npy")
    for x in (np.arange(3, dtype=np.float32), np.zeros(2, np.float32)):
        write_array(tmp_path / "link", x)
        np.testing.assert_array_equal(np.load(tmp_path / "there" / "y.npy"), x)
    assert (tmp_path / "link").is_symlink() and sorted(path.name for path in tmp_path.rglob("*")) == ["link", "there", "y.npy"]


def test_a_device_or_a_pipe_is_never_replaced(tmp_path):
    pipe, x = tmp_path / "pipe", np.arange(3, dtype=np.float32)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_array(pipe, x)
    np.testing.assert_array_equal(np.load(io.BytesIO(os.read(reader, 1 << 16))), x)
    os.close(reader)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]
    (tmp_path / "link").symlink_to("/dev/full")
    with pytest.raises(DataError, match="No space left"):
        write_array(tmp_path / "link", x)
    assert (tmp_path / "link").is_char_device()


def test_a_header_is_never_trusted(tmp_path):
    """A header that claims gigabytes or terabytes raises an error without allocating more than 16 MB, in a file and in an
    archive."""
    claim, archived = tmp_path / "claim.npy", tmp_path / "claim.npz"
    for count in (1 << 24, 1 << 40):
        with open(claim, "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, 18)})
            file.write(bytes(100))
        with zipfile.ZipFile(archived, "w") as archive:
            archive.write(claim, "x.npy")
        for path in (claim, archived):
            tracemalloc.start()
            with pytest.raises(DataError, match="damaged"):
                read_array(path, "x")
            assert tracemalloc.get_traced_memory()[1] < 1 << 24
            tracemalloc.stop()
