"""Dropout: reproducible random masks for the results of stages in a training step."""

from dataclasses import dataclass

import numpy as np
from ml_dtypes import bfloat16

from ..ir.found_norms import norms_in

__all__ = ["Dropout"]


@dataclass(frozen=True)
class Dropout:
    """Inverted dropout (Srivastava and others 2014). Results are multiplied by a mask of the values 0 and 1 / (1 - share),
    rounded to bfloat16. The share is rounded to a multiple of 1 / 256.

    Dropout applies to hidden dense layers: stages that have an activation function and whose result is a vector. If there are
    none, it applies to the operands of the last stage. It does not apply inside a normalization.

    Raises
    ------
    ValueError
        If the share is not in [0, 1).
    """

    share: float  # dropout rate: the probability that a number is dropped, in [0, 1)
    seed: int = 1
    rates: tuple = ()  # Tuple of (str, float). Inputs with masks, and their rates, in place of hidden layers.

    def __post_init__(self):
        for share in (self.share, *(rate for _, rate in self.rates)):
            if not 0 <= share < 1:
                raise ValueError(f"the share of dropout must be at least 0 and less than 1, not {share:g}")

    @property
    def factor(self):
        """Returns the factor of the numbers that are not dropped, 1 / (1 - share) in bfloat16."""
        return _factor(_edge(self.share))

    def stages(self, graph):
        """Returns the indices of the stages whose results get a mask, in a network."""
        if self.share == 0:
            return ()
        stages = graph.stages
        trained = set(graph.differentiated).difference(*(numbers for numbers, _ in norms_in(graph).values()))
        dense = tuple(
            number
            for number, stage in enumerate(stages[:-1])
            if number in trained and stage.result_size == (1, 1) and stage.function.name != "none"
        )
        read = {term.source for term in stages[-1].terms}
        return dense or tuple(number for number in sorted(trained) if stages[number].output in read)

    def masks(self, graph, step, batch):
        """Returns the masks of one training step, as `{stage number or input: bfloat16 (batch, height, width, channels)}`. Steps
        are counted from 0.

        Random bytes come from Philox 4x64 (Salmon and others 2011). Its key is (seed, number of the stage, or place in `rates`);
        the third word of its counter is `step`. The bytes belong to the numbers of the mask in the order sample, y, x, channel.
        Numbers whose byte is below the rate times 256, rounded, are dropped.
        """
        shapes = {
            number: (*graph.stages[number].result_size, graph.channels(graph.stages[number])) for number in self.stages(graph)
        }
        shapes |= {name: graph.tensors[name].shape for name, _ in self.rates}
        edges, masks = {name: _edge(rate) for name, rate in self.rates}, {}
        for place, (name, shape) in enumerate(shapes.items()):
            number, edge = (place, edges[name]) if name in edges else (name, _edge(self.share))
            random = np.random.Generator(np.random.Philox(key=[self.seed, number], counter=[0, 0, step, 0]))
            bytes_of = np.frombuffer(random.bytes(batch * int(np.prod(shape))), np.uint8).reshape(batch, *shape)
            masks[name] = np.where(bytes_of < edge, bfloat16(0), _factor(edge))
        return masks


def _edge(share):
    """Returns the threshold, 0 to 255. A number is dropped if its random byte is below the threshold."""
    return min(round(share * 256), 255)


def _factor(edge):
    return np.float32(256 / (256 - edge)).astype(bfloat16)
