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

    def __post_init__(self):
        if not 0 <= self.share < 1:
            raise ValueError(f"the share of dropout must be at least 0 and less than 1, not {self.share:g}")

    @property
    def _edge(self):
        """Returns the threshold, 0 to 255. A number is dropped if its random byte is below the threshold."""
        return min(round(self.share * 256), 255)

    @property
    def factor(self):
        """Returns the factor of the numbers that are not dropped, 1 / (1 - share) in bfloat16."""
        return np.float32(256 / (256 - self._edge)).astype(bfloat16)

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
        """Returns the masks of one training step, as `{stage number: bfloat16 (batch, height, width, channels)}`. Steps are
        counted from 0.

        Random bytes come from Philox 4x64 (Salmon and others 2011). Its key is (seed, stage); the third word of its counter is
        `step`. The bytes belong to the numbers of the mask in the order sample, y, x, channel. Numbers whose byte is below `share
        * 256`, rounded, are dropped.
        """
        masks = {}
        for number in self.stages(graph):
            stage = graph.stages[number]
            shape = (batch, *stage.result_size, graph.channels(stage))
            random = np.random.Generator(np.random.Philox(key=[self.seed, number], counter=[0, 0, step, 0]))
            bytes_of = np.frombuffer(random.bytes(int(np.prod(shape))), np.uint8).reshape(shape)
            masks[number] = np.where(bytes_of < self._edge, bfloat16(0), self.factor)
        return masks
