"""Random initial values of parameters."""

import numpy as np

__all__ = ["initialize"]


def initialize(graph, seed):
    """Returns random initial values, float32, for each parameter of a network.

    Weights are normally distributed with variance 2 / K (He and others 2015), also in the last stage. K is the number of products
    of the term in one sum. Biases are 0. Parameter number i is drawn from `numpy.random.default_rng([seed, i])`, in the order
    (ky, kx, channel of the source, channel of the result).
    """
    masters = []
    for number, one in enumerate(graph.parameters.values()):
        shape, random = one.initial.shape, np.random.default_rng([seed, number])
        if one.is_average:
            masters.append(one.initial)
            continue
        spread = (2 / np.prod(shape[:2])) ** 0.5
        masters.append(random.normal(0, spread, shape).astype(np.float32) if one.decays else np.zeros(shape, np.float32))
    return masters
