"""Tests of `fit` with samples that are read as they are trained on: iterables of batches, and arrays in files."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.trainer.order import epoch_order
from onnx_models import Builder, weights
from training_runs import clusters

COUNT, SIZE = 60, 12


class Loader:
    """Batches of arrays, in the order in which `fit` draws the samples of an array, with seed 1. `passes` is counted."""

    def __init__(self, *arrays, size=7):
        self.arrays, self.size, self.passes = arrays, size, -1  # the first pass counts

    def __iter__(self):
        order = epoch_order(1, max(0, self.passes), COUNT)
        self.passes += 1
        for first in range(0, COUNT, self.size):
            yield tuple(array[order[first : first + self.size]] for array in self.arrays)


def _fit(path, *data, callbacks=(), check_steps=0, **given):
    model = tpu.load(path)
    given = {"epochs": 3, "batch_size": SIZE, "core": tpu.Config(n=4), "callbacks": callbacks, "verbose": False} | given
    done = model.fit(*data, check_steps=check_steps, **given)
    assert not check_steps or done.core["mismatched_bits"] == 0
    return model, done


def _same(one, other, x):
    return (one[1].step_losses == other[1].step_losses).all() and (one[0].predict(x) == other[0].predict(x)).all()


def test_a_loader_gives_the_bits_of_its_samples(rng, path, data):
    """Each epoch is a pass. Steps have their own size, also across batches."""
    factors = rng.uniform(0.5, 2, COUNT)
    assert _same(_fit(path, Loader(*data), check_steps=2), _fit(path, *data), data[0])
    one, other = _fit(path, Loader(*data, factors), check_steps=1), _fit(path, *data, sample_weight=factors)
    assert _same(one, other, data[0])
    given = {"class_weight": {0: 2.0}, "label_smoothing": 0.1}
    assert _same(_fit(path, Loader(*data), **given), _fit(path, *data, **given), data[0])


def test_the_first_batch_is_the_size_of_a_step(path, data):
    model, loader = tpu.load(path), Loader(*data, size=10)
    done = model.fit(loader, epochs=2, verbose=False)
    assert len(done.step_losses) == 12 and loader.passes == 2
    assert model.evaluate(Loader(*data)) == pytest.approx(model.evaluate(*data))


def test_generators(path, data):
    """An iterator with a number of steps is read as far as it is needed; without one, it is read once."""
    taken = []

    def batches():
        while True:
            taken.append(1)
            yield data[0][:SIZE], data[1][:SIZE]

    _, done = _fit(path, batches(), epochs=2, steps_per_epoch=3)
    assert len(done.step_losses) == 6 == len(taken) and len(done.epochs) == 2
    _, done = _fit(path, batches(), epochs=None, steps=5)
    assert len(done.step_losses) == 5 and len(taken) == 11
    whole = iter([(data[0][:30], data[1][:30]), (data[0][30:], data[1][30:])])
    assert _same(_fit(path, whole), _fit(path, *data), data[0])


def test_arrays_in_files_stay_there(path, data, tmp_path, monkeypatch):
    """A np.memmap gives the bits of its array, and no more than some of its samples are read at a time."""
    x, y = data
    np.save(tmp_path / "x.npy", x)
    stored, most = np.load(tmp_path / "x.npy", mmap_mode="r"), []
    from amaranth_tpu.sim.tpu import training_data

    plain = training_data.samples_of
    monkeypatch.setattr(training_data, "samples_of", lambda network, x: most.append(len(x)) or plain(network, x))
    one = _fit(path, stored, y, validation_split=0.25)
    assert max(most) <= 48 and len(most) > 10
    assert _same(one, _fit(path, x, y, validation_split=0.25), x)


def test_several_inputs_and_positions(rng, tmp_path):
    """Batches may hold a dict of inputs. Labels of positions may be padding in later batches."""
    b = Builder(["n", 2, 3, 3])
    b("Conv", weights(rng, 3, 2, 3, 3), pads=[1] * 4)
    path, x = b.save(tmp_path), rng.normal(size=(COUNT, 2, 3, 3)).astype(np.float32)
    y = rng.integers(0, 3, (COUNT, 9))
    y[30:, 0] = -100
    assert _same(_fit(path, Loader(x, y), check_steps=1), _fit(path, x, y), x)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_checkpoint_has_the_position(path, data, tmp_path, epochs):
    """A resumed run has the bits of the whole one. A stream with another order is refused."""
    wanted, folder = _fit(path, Loader(*data)), tmp_path / "run"
    _fit(path, Loader(*data), epochs=epochs, callbacks=[tpu.Checkpoint(folder)])
    assert _same(_fit(path, Loader(*data), callbacks=[tpu.Checkpoint(folder, resume=True)]), wanted, data[0])
    other = Loader(data[0][::-1], data[1][::-1])
    with pytest.raises(DataError, match="x: gives other batches than before the checkpoint"):
        _fit(path, other, epochs=4, callbacks=[tpu.Checkpoint(folder, resume=True)])


def test_loaders_of_torch(path, data):
    """A DataLoader is shuffled anew in each epoch, by its own generator."""
    torch = pytest.importorskip("torch", reason="needs the package torch")
    x, y = map(torch.tensor, data)

    def loader():
        dataset = torch.utils.data.TensorDataset(x, y)
        return torch.utils.data.DataLoader(dataset, SIZE, shuffle=True, generator=torch.Generator().manual_seed(1))

    one, other = (_fit(path, loader(), learning_rate=0.05) for _ in range(2))
    assert _same(one, other, data[0]) and len(one[1].step_losses) == 15
    assert one[1].step_losses[0] > one[1].step_losses[-1]
    first, second = loader(), loader()
    for _ in range(2):
        passes = [torch.cat([labels for _, labels in one]) for one in (first, second)]
        assert (passes[0] == passes[1]).all()


@pytest.mark.parametrize(
    "given, message",
    [
        ({"validation_split": 0.2}, "`validation_split` does not apply to a stream of batches; give `validation_data`"),
        ({"sample_weight": np.ones(COUNT)}, "`sample_weight` does not apply to a stream; give the factors as a third"),
        ({"steps_per_epoch": 6}, "x: ended in step 6 of 6 of epoch 1; give `steps_per_epoch`, or a data set whose passes"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be an integer of at least 1, not 0"),
        ({"batch_size": 64}, "60 training samples do not fill a batch of 64; give a smaller batch"),
    ],
)
def test_refusals(path, data, given, message):
    with pytest.raises((tpu.ArgumentError, DataError), match=message):
        _fit(path, Loader(*data), **given)


def test_steps_per_epoch_of_arrays(path, data):
    with pytest.raises(tpu.ArgumentError, match="`steps_per_epoch` is for an iterable of batches"):
        _fit(path, *data, steps_per_epoch=2)


_SCRIPT = """
import sys, time
import numpy as np
from amaranth_tpu import tpu

class Loader:
    passes = 0
    def __iter__(self):
        order = np.random.default_rng(self.passes).permutation(len(y))
        self.passes += 1
        for first in range(0, len(y), 16):
            time.sleep(0.002)
            yield x[order[first : first + 16]], y[order[first : first + 16]]

path, folder, out = sys.argv[1:]
data = np.load(path + ".npz")
x, y = data["x"], data["y"]
model = tpu.load(path)
save = tpu.Checkpoint(folder, resume=True)
model.fit(Loader(), epochs=12, batch_size=20, evaluate_every=7, callbacks=[save], verbose=False)
model.save(out)
"""


@pytest.mark.slow
def test_killed_streams_give_the_same_bytes(rng, path, data, tmp_path):
    """A streamed fit that is killed at ten random moments ends with the bytes of one that ran through."""
    x, y = clusters(rng, 400)
    np.savez(f"{path}.npz", x=x, y=y)

    def start(folder, out):
        return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(path), str(tmp_path / folder), str(tmp_path / out)])

    begun = time.monotonic()
    assert start("whole", "whole.onnx").wait() == 0
    seconds, killed = time.monotonic() - begun, 0
    while killed < 10:
        run = start("parts", "parts.onnx")
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        if run.poll() is not None:  # it came to the end: begin anew
            for file in (tmp_path / "parts").iterdir():
                os.remove(file)
            continue
        run.send_signal(signal.SIGKILL)
        run.wait()
        killed += 1
    assert start("parts", "parts.onnx").wait() == 0
    assert (tmp_path / "parts.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()
