"""Tests of samples that are read batch by batch: their order, and the position that checkpoints hold."""

import numpy as np
import pytest

from amaranth_tpu.sim.data.errors import DataError
from amaranth_tpu.sim.golden.arithmetic import round_bfloat16
from amaranth_tpu.sim.trainer.samples import LabelledSamples
from amaranth_tpu.sim.trainer.stream import Stream

COUNT = 23


class Loader:
    """Batches of the numbers below `COUNT`, in an order that is drawn anew for each pass."""

    def __init__(self, size=5, seed=1):
        self.size, self.random, self.read = size, np.random.default_rng(seed), 0

    def order(self):
        return self.random.permutation(COUNT)

    def __iter__(self):
        order = self.order()
        for first in range(0, COUNT, self.size):
            self.read += 1
            yield order[first : first + self.size]


class StatefulLoader(Loader):
    """A loader that knows its position, as torchdata's: the pass goes on after `load_state_dict`."""

    def __init__(self, size=5, seed=1):
        super().__init__(size, seed)
        self.seed, self.passes, self.place, self.resumes = seed, 0, 0, False

    def state_dict(self):
        return {"passes": self.passes, "place": self.place}

    def load_state_dict(self, state):
        self.passes, self.place, self.resumes = state["passes"], state["place"], state["place"] > 0

    def __iter__(self):
        if not self.resumes:
            self.place = 0
        self.resumes = False
        order = np.random.default_rng([self.seed, self.passes]).permutation(COUNT)
        while self.place * self.size < COUNT:
            first = self.place * self.size
            self.place, self.read = self.place + 1, self.read + 1
            if self.place * self.size >= COUNT:
                self.passes, self.place = self.passes + 1, 0
                yield order[first : first + self.size]
                return
            yield order[first : first + self.size]


def _convert(batch):
    return LabelledSamples(round_bfloat16(np.asarray(batch, np.float32)[:, None]), np.asarray(batch, np.int64))


def _stream(data, size=4, steps=COUNT // 4):
    return Stream(data, _convert, size, steps, False, True)


def _steps(stream, first, last):
    return [stream.batch(*divmod(number, stream.steps)).labels.tolist() for number in range(first, last)]


@pytest.mark.parametrize("size", [1, 4, 5, 23, 30])
def test_steps_take_the_samples_in_order(size):
    """Each step has the next samples of the pass, however they are divided; the rest of the pass is dropped."""
    found = _steps(_stream(Loader(size)), 0, 10)
    other = Loader()
    for epoch in range(2):
        order = other.order()
        assert np.concatenate(found[5 * epoch : 5 * epoch + 5]).tolist() == order[:20].tolist()


def test_an_iterator_is_one_pass():
    found = _steps(_stream(iter([np.arange(50)]), steps=3), 0, 9)
    assert np.concatenate(found).tolist() == list(range(36))


@pytest.mark.parametrize("kind", [Loader, StatefulLoader])
@pytest.mark.parametrize("size", [1, 4, 5, 7])
def test_resumed_streams(kind, size):
    """After any step, a new stream at the position of the first one gives the same samples."""
    wanted = _steps(_stream(kind(size)), 0, 15)
    first = _stream(kind(size))
    for done in range(1, 15):
        assert _steps(first, done - 1, done) == wanted[done - 1 : done]
        place, loader = first.position(), kind(size)
        again = _stream(loader)
        again.restore(*divmod(done, 5), place)
        assert kind is Loader or loader.read <= 1  # nothing before the position is read again
        assert _steps(again, done, 15) == wanted[done:], done


def test_another_order_is_refused():
    first = _stream(Loader())
    _steps(first, 0, 7)
    with pytest.raises(DataError, match="x: gives other batches than before the checkpoint; give its order a seed"):
        _stream(Loader(seed=2)).restore(1, 2, first.position())


def test_a_pass_that_is_too_short():
    with pytest.raises(DataError, match="x: ended in step 6 of 6 of epoch 1; give `steps_per_epoch`, or a data set"):
        _steps(_stream(Loader(), steps=6), 0, 6)
