"""What is done with the gradients of a part of a parameter: the optimizers of :mod:`sim.ir.optimizers` as instructions.

An update has two halves. The second, which makes the new master, comes after the gradient of the next part: then what it waits
for, the way of the first half's results through the unified buffer, is hidden.
"""

from collections import deque

from amaranth_tpu.hw.spec.isa import Format, Region

from ..ir.optimizers import Adam, Sgd
from .parameters import MASTER
from .step_emitter import from_rows

__all__ = ["update_all", "rows_in_flight"]

_AHEAD = 1  # parts whose gradients are summed before the new master of a part


def rows_in_flight(optimizer):
    """Vectors of the unified buffer that updates take at least, in rows of a part."""
    return {Sgd: 8, Adam: 24}[type(optimizer)]


def update_all(emitter, optimizer, parts, ring, acc):
    """Updates of all parts, in the order in which they come.

    Parameters
    ----------
    parts : iterable of Part
        Each comes when the instructions for its sums have been emitted.
    ring, acc : Ring
        Places in the unified buffer and in the accumulators.
    """
    rule = {Sgd: _Sgd}[type(optimizer)](emitter, optimizer, ring, acc)
    waiting = deque()
    for part in parts:
        rule.begin(part)
        waiting.append(part)
        if len(waiting) > _AHEAD:
            rule.end(waiting.popleft())
    for part in waiting:
        rule.end(part)


class _Sgd:
    def __init__(self, emitter, optimizer, ring, acc):
        self.emitter, self.decays, self.ring, self.acc = emitter, bool(optimizer.weight_decay), ring, acc

    def _places(self, part, name):
        """First vectors of a part in SCRATCH, of each plane of what is kept under this name."""
        return [place + part.first for place in part.planes.places(name)]

    def begin(self, part):
        """V' = bf16(G + mu V), with weight decay bf16((G + mu V) + decay * upper half of W)."""
        emitter, (momentum,) = self.emitter, self._places(part, "momentum")
        part.step = self.ring.take(part.rows)
        emitter.add_product("momentum", momentum, part.rows, part.acc)
        if self.decays and part.decays:
            emitter.add_product("decay", self._places(part, MASTER)[0], part.rows, part.acc)
        emitter.activate(part.acc, part.step, part.rows)
        emitter.store(Region.SCRATCH, momentum, part.rows, part.step)

    def end(self, part):
        """W' = W - r V'."""
        emitter, planes = self.emitter, self._places(part, MASTER)
        bias, acc = emitter.load_halves(planes, [(0, part.rows)]), self.acc.take(part.rows)
        emitter.add_scaled("rate", part.step, part.rows, acc, from_rows(bias))
        place = self.ring.take(2 * part.rows)
        emitter.activate(acc, place, part.rows, Format.PLANES)
        for index, vector in enumerate(planes):
            emitter.store(Region.SCRATCH, vector, part.rows, place + index * part.rows)
