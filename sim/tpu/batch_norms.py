"""Batch normalizations of PyTorch and Keras as scale and shift of each channel, and the way back."""

from dataclasses import dataclass

import numpy as np

__all__ = ["BatchNorm"]


@dataclass(frozen=True)
class BatchNorm:
    """A layer `(x - mean) / sqrt(variance + epsilon) * gamma + beta`. In inference it is `x * scale + shift`.

    The names `mean`, `variance`, `gamma` and `beta` are weights of the framework's object; `gamma` and `beta` may be None.
    `name.scale` and `name.shift` stand for the four in a :class:`.Source`.
    """

    name: str
    mean: str
    variance: str
    gamma: str | None
    beta: str | None
    epsilon: float
    axis: int  # axis of the channels

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
        """Returns the names of scale and shift that training must not change, if it must not change `names`. Without `beta`, the
        mean follows the shift."""
        scale = [self.scale] if self.gamma is None or self.gamma in names else []
        return scale + [self.shift] * (self.beta in names)

    def is_frozen(self, names):
        """Returns True if training must change neither scale nor shift."""
        return len(self.fixed(names)) == 2

    def folded(self, weights):
        """Returns `{name: array}` of scale and shift, float32."""
        mean, variance = weights[self.mean].astype(np.float64), weights[self.variance].astype(np.float64)
        scale = weights.get(self.gamma, np.float64(1)) / np.sqrt(variance + self.epsilon)
        shift = weights.get(self.beta, np.float64(0)) - mean * scale
        return {self.scale: scale.astype(np.float32), self.shift: shift.astype(np.float32)}

    def unfolded(self, values, weights):
        """Returns `{name: array}` of the layer's weights with the scale and shift in `values`. Mean and variance are those in
        `weights`, except that a layer without `beta` has its shift in the mean."""
        scale, shift = (values[name].astype(np.float64) for name in (self.scale, self.shift))
        mean, made = weights[self.mean].astype(np.float64), {}
        if self.gamma:
            made[self.gamma] = scale * np.sqrt(weights[self.variance].astype(np.float64) + self.epsilon)
        if self.beta:
            made[self.beta] = shift + mean * scale
        else:
            made[self.mean] = np.where(scale == 0, mean, -shift / np.where(scale == 0, 1, scale))
        return {name: array.astype(np.float32) for name, array in made.items()}
