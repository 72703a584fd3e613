"""Batch normalizations of PyTorch and Keras as scale and shift of each channel, and the way back."""

from dataclasses import dataclass

import numpy as np

from ..autodiff.batch_norms import with_batch_norm
from ..ir.stage import ChannelNorm

__all__ = ["BatchNorm"]


@dataclass(frozen=True)
class BatchNorm:
    """A layer `(x - mean) / sqrt(variance + epsilon) * gamma + beta`. In inference it is `x * scale + shift`. In training, mean
    and variance are statistics of a batch, unless the layer is frozen.

    The names `mean`, `variance`, `gamma` and `beta` are weights of the framework's object; `gamma` and `beta` may be None.
    `name.scale` and `name.shift` stand for the four in a :class:`.Source`. With `apart`, they are gamma and beta.
    """

    name: str
    mean: str
    variance: str
    gamma: str | None
    beta: str | None
    epsilon: float
    axis: int  # axis of the channels
    momentum: float = 0.1  # share of a batch in the running averages
    unbiased: bool = True  # the running variance is the sum of squares / (values - 1)
    is_frozen: bool = False

    @property
    def own(self):
        """Returns the names of the layer's weights in the framework's object."""
        return [name for name in (self.mean, self.variance, self.gamma, self.beta) if name]

    @property
    def scale(self):
        return f"{self.name}.scale"

    @property
    def shift(self):
        return f"{self.name}.shift"

    def fixed(self, names):
        """Returns the names of scale and shift that training must not change, if it must not change `names`."""
        pairs = ((self.scale, self.gamma), (self.shift, self.beta))
        return [name for name, own in pairs if own is None or own in names]

    def folded(self, weights, apart):
        """Returns `{name: array}` of scale and shift, float32."""
        mean, variance = weights[self.mean].astype(np.float64), weights[self.variance].astype(np.float64)
        gamma = np.broadcast_to(weights.get(self.gamma, np.float64(1)), mean.shape)
        scale = gamma if apart else gamma / np.sqrt(variance + self.epsilon)
        shift = np.broadcast_to(weights.get(self.beta, np.float64(0)), mean.shape) - (0 if apart else mean * scale)
        return {self.scale: scale.astype(np.float32), self.shift: shift.astype(np.float32)}

    def unfolded(self, values, weights, apart):
        """Returns `{name: array}` of gamma and beta with the scale and shift in `values`. Mean and variance are those in
        `weights`."""
        scale, shift = (values[name].astype(np.float64) for name in (self.scale, self.shift))
        deviation = 1 if apart else np.sqrt(weights[self.variance].astype(np.float64) + self.epsilon)
        beta = shift if apart else shift + weights[self.mean].astype(np.float64) * scale
        made = {self.gamma: scale * deviation, self.beta: beta}
        return {name: array.astype(np.float32) for name, array in made.items() if name}

    @property
    def _averages(self):
        return f"{self.name}: minus mean", f"{self.name}: variance"

    def normalized(self, graph, weights, batch, own):
        """Returns the graph that normalizes the source of `weights`, this layer's scale, by statistics of `batch` samples.
        `own` has the object's weights."""
        norm = ChannelNorm(self.epsilon, batch, *self._averages, self.momentum, self.unbiased)
        return with_batch_norm(graph, weights, norm, own[self.mean], own[self.variance])

    def averages(self, constants):
        """Returns `{name: array}` of mean and variance, from the constants of a trained graph."""
        mean, variance = (constants[name].reshape(-1) for name in self._averages)
        return {self.mean: 0 - mean, self.variance: variance}
