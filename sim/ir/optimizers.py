"""Optimizers: parameter updates, computed by the core as passes over diagonal tiles.

Gradients G are sums over the batch, in binary32. W are the parameters. A factor that multiplies every lane is the diagonal of a
weight tile, in bfloat16; the methods `factors` return these factors with their signs. The bit-exact definition of an optimizer is
in :mod:`sim.autodiff.updates`. An update by SGD takes two passes, or one UPDATE; an update by Adam takes
six passes.

Adam
----
Moments of the gradient are m and v. The state M is m times batch / (1 - b1), so that the sums G are added to it without a
factor. The state S is v up to a factor of at most sqrt(2) either way, so that the factor of a square is a power of two. These
factors, and the bias corrections of the first steps, are included in `rate`. A function table computes 1 / sqrt. The table
covers 14 binades, is constant outside these binades, and has separate values for negative arguments. Two lookups therefore
cover 28 binades. With T = 2^-20,

    f(+s) = sqrt(T / s), for s from 2^-14 T to T; beyond, the value at the nearer end
    f(-s) = sqrt(T / (2^14 s)), for s from 2^-14 T to T; beyond, the value at the nearer end
    f(S) * f(-2^-14 S) = sqrt(T / S), for S from 2^-34 to 2^-6; one of the two is 1 but for the table's last place

The root of v is therefore clamped to at least 2^-17 = 7.6e-6, in place of an epsilon, and to at most 0.125.

An update consists of the following instructions, for rows of a parameter. A, B, C, E are rows of accumulators. Primes mark
new values, and upper() the upper half of a binary32. MULTIPLY first rounds the accumulators to bfloat16, so that MULTIPLY(A,
p) uses M' = bf16(A). A lower-case factor is the diagonal of a tile::

    A = G                                                   the gradient's sums
    g = ACTIVATE(A)                                         bf16(G)
    q = MULTIPLY(A, g)                                      bf16(g g)
    A += first * M                   (1 pass, no start)
    M' = ACTIVATE(A)                                        stored
    B = S + moved * upper(S)         (1 pass, bias_rows from S; moved = -(1 - b2))
    B += square * q                  (1 pass, no start)
    S' = ACTIVATE(B, PLANES)                                both halves stored; upper(S') cut off, as the masters' are
    p = ACTIVATE(B, TABLE)                                  f(S')
    C = beyond * upper(S')           (1 pass, start; beyond = -2^-14)
    o = ACTIVATE(C, TABLE)                                  f(-2^-14 upper(S'))
    u = MULTIPLY(A, p)                                      bf16(M' p)
    E = 1 * u                        (1 pass, start)
    w = MULTIPLY(E, o)                                      bf16(u o)
    W = W + rate * w                 (1 pass, bias_rows from W; rate is negative)
    W += decay * upper(W)            (1 pass, no start; not if decay is 0, nor for biases)
    W' = ACTIVATE(W, PLANES)                                both halves stored
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from ml_dtypes import bfloat16

__all__ = ["Sgd", "Adam", "RmsProp", "TABLE_BINADES", "TABLE_MIDDLE"]

#: Adam's table of 1 / sqrt has this number of binades below and above this number.
TABLE_BINADES, TABLE_MIDDLE = 14, 2.0**-20


def _rounded(value):
    return np.float32(value).astype(bfloat16)


def _check_share(name, value):
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1, not {value:g}")


def _check_factor(name, value):
    if not 0 <= float(_rounded(value)) < 1:
        raise ValueError(f"{name}, rounded to bfloat16, must be at least 0 and less than 1, not {value:g}")


def _check_decay(value):
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"weight decay must be at least 0 and finite, not {value:g}")


@dataclass(frozen=True)
class Optimizer:
    """An optimizer, whose gradients may be clipped.

    Gradients that are clipped by value have units of the largest value, so the factors of an update are the factors of a batch of
    `clip * batch` samples::

        C = clip(clip * bf16(G))                  from -1 to 1, by a table; clip = 1 / (clip_value * batch)

    Gradients that are clipped by their norm have one factor, which is 1 if the norm is at most `clip_norm`::

        N = sum of bf16(bf16(G) bf16(G))          over all gradients, rounded to bfloat16 for each output
        f = min(1, 1 / sqrt(norm * N))            by a table; norm = 1 / (clip_norm * batch)^2
        C = f * bf16(G)

    The update then reads the sums C in place of G.

    Raises
    ------
    ValueError
        If a limit is not above 0, or if both are given.
    """

    #: Largest absolute value of each number of a mean gradient. Larger numbers are clipped. None: no limit.
    clip_value: float | None = field(default=None, kw_only=True)
    #: Largest norm of all mean gradients together. Gradients with a larger norm are scaled to this norm. None: no limit.
    clip_norm: float | None = field(default=None, kw_only=True)

    def __post_init__(self):
        for name in ("clip_value", "clip_norm"):
            limit = getattr(self, name)
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"`{name}` must be above 0 and finite, not {limit:g}")
        if None not in (self.clip_value, self.clip_norm):
            raise ValueError("`clip_value` and `clip_norm` exclude each other; give one")

    def factors(self, rate, batch, step):
        """Returns the factors of update number `step`, counted from 1: {name: bfloat16}. `rate` is the learning rate for the mean
        gradient, and `batch` the divisor of the sums of gradients."""
        if self.clip_value is not None:
            clip = _rounded(1 / (self.clip_value * batch))
            return {"clip": clip} | self.own_factors(rate, float(clip) * batch, step)
        norm = {} if self.clip_norm is None else {"norm": _rounded((self.clip_norm * batch) ** -2)}
        return norm | self.own_factors(rate, batch, step)

    def own_factors(self, rate, batch, step):
        """Returns the factors of :meth:`factors` that do not belong to clipping."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sgd(Optimizer):
    """Stochastic gradient descent with momentum V, in bfloat16, and momentum factor mu. Primes mark values after the update::

        V' = bf16(G + mu V)                       with weight decay: bf16((G + mu V) + decay * upper half of W)
        W' = W - r V'                             r = rate / batch, decay = weight_decay * batch

    It corresponds to PyTorch's SGD, whose gradients are means.

    Parameters
    ----------
    momentum : float
        Factor mu of the momentum V.
    weight_decay : float
        L2 regularisation. It does not apply to biases.

    Raises
    ------
    ValueError
        If the momentum, rounded to bfloat16, is not in [0, 1), or if the weight decay is negative.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0

    #: Optimizer state of each parameter: {name: number type}.
    slots: ClassVar = {"momentum": bfloat16}

    def __post_init__(self):
        super().__post_init__()
        _check_factor("momentum", self.momentum)
        _check_decay(self.weight_decay)

    def own_factors(self, rate, batch, step):
        """Returns the factors of an update, {name: bfloat16}. `step` is the number of the update, counted from 1; SGD ignores it.

        `momentum` multiplies V. `decay` multiplies the upper half of W in V'; if it is 0, this pass is omitted. `rate` multiplies
        V' in W', and is negative.
        """
        return {
            "momentum": _rounded(self.momentum),
            "decay": _rounded(self.weight_decay * batch),
            "rate": _rounded(-rate / batch),
        }


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma, Ba 2015), with decoupled weight decay (Loshchilov, Hutter 2019). An update changes W by rate * m / sqrt(v)
    and by rate * weight_decay * W, where m and v are the first and second moment of the gradient.

    The root of the second moment is clamped to at least 2^-17 = 7.6e-6, in place of an epsilon, and to at most 0.125, times
    `unit`. The module :mod:`sim.ir.optimizers` lists the instructions of an update.

    Raises
    ------
    ValueError
        If the decay rate of a moment is not in [0, 1) (for the first moment, after rounding to bfloat16), or if the weight decay
        is negative.
    """

    #: first, second: Decay rates of the moments, also called beta 1 and beta 2.
    first: float = 0.9
    second: float = 0.999
    weight_decay: float = 0.0  # Decoupled weight decay (AdamW). It does not apply to biases.
    #: A power of two, which multiplies both limits of the root of the second moment, for targets much larger than 1.
    unit: float = 1.0

    slots: ClassVar = {"first": bfloat16, "second": np.float32}
    is_corrected: ClassVar = True  # the moments of the first steps are divided by their shares so far

    def __post_init__(self):
        super().__post_init__()
        _check_factor("Adam's share of the first moment", self.first)
        _check_share("Adam's share of the second moment", self.second)
        _check_decay(self.weight_decay)

    def own_factors(self, rate, batch, step):
        """Returns the factors of update number `step`, counted from 1: {name: bfloat16} for `first`, `moved`, `square`, `beyond`,
        `rate` and `decay` in the instructions of the class."""
        first, moved = _rounded(self.first), _rounded(1 - self.second)
        one, two = float(first), 1 - float(moved)  # the rounded values
        square = 2.0 ** round(math.log2(float(moved) / (batch * self.unit) ** 2))
        first_share, share = (1 - one**step, 1 - two**step) if self.is_corrected else (1, 1)
        correction = (1 - one) / first_share * math.sqrt(share * square / float(moved) / TABLE_MIDDLE)
        return {
            "first": first,
            "moved": -moved,
            "square": _rounded(square),
            "beyond": _rounded(-(2.0**-TABLE_BINADES)),
            "rate": _rounded(-rate * correction),
            "decay": _rounded(-rate * self.weight_decay),
        }


@dataclass(frozen=True)
class RmsProp(Adam):
    """RMSprop (Hinton 2012), which changes W by rate * gradient / sqrt(v). It is :class:`Adam` without a first moment and without
    corrections of the first steps. Weight decay is decoupled, as in Adam."""

    first: float = 0.0
    second: float = 0.9

    is_corrected: ClassVar = False
