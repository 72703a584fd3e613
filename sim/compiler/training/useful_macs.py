"""The multiplications that a training step needs, to tell how much of the array is used."""

__all__ = ["useful_macs"]


def useful_macs(step):
    """Returns the multiplications of a :class:`sim.ir.step.StepGraph` for one sample: products with parameters, products of two
    results, and gradients. Positions around a tensor count, as is usual. Factors, constants and sums of biases do not."""
    terms = {(stage.sums, place): (stage, term) for stage in step.stages for place, term in enumerate(stage.terms)}
    return sum(_of_term(step, stage, term) for stage, term in terms.values())


def _of_term(step, stage, term):
    source, weights, output = (step.tensors[name] for name in (term.source, term.weights, stage.output))
    if {term.source, term.weights} & step.constants.keys() or step.is_diagonal(term, (*stage.size, output.channels)):
        return 0
    positions = source.height * source.width
    if not output.samples:
        return _positions(weights) * _positions(output) * output.channels if weights.samples else 0
    if weights.samples:
        sums = positions if term.transposed else stage.size[0] * stage.size[1]
        return sums * source.channels * output.channels
    # The gradient of a convolution's source has more positions than the gradient that it reads, where it reads zeros.
    return min(positions, stage.size[0] * stage.size[1]) * _positions(weights) * weights.channels


def _positions(tensor):
    return tensor.height * tensor.width
