"""Sums of gradients over the cores of a ring, for updates of shares or of whole parameters."""

from dataclasses import replace

from ..ir.stage import Stage

__all__ = ["add_sum_of_cores", "kind_of", "segment_outputs"]


def segment_outputs(outputs, cores):
    """Returns the number of outputs in a segment of weights. One core updates each segment. The last segments may have fewer
    outputs, or none."""
    return -(-outputs // cores)


def kind_of(step, name):
    """Returns `(divided, grouped)` of a parameter. `divided`: the sum over the cores has an order for each segment of outputs, as
    the parameter is neither a bias nor one factor per channel. `grouped`: it has groups of channels."""
    terms = [(term, stage) for stage in step.stages for term in stage.terms if term.weights == name]
    shapes = [(term, (*stage.size, step.tensors[stage.output].channels)) for term, stage in terms]
    divided = step.parameters[name].decays and not any(step.is_diagonal(term, shape) for term, shape in shapes)
    return divided, any(term.groups > 1 for term, _ in terms)


def add_sum_of_cores(step, name, gradient, cores, sharded=True):
    """Adds the gradient of a parameter on a ring. `gradient` is the gradient of the samples of one core. Returns the names of the
    tensor that each core updates, and of its gradient for all samples.

    Biases and gains, one factor per channel, are small: all cores update all of them. The outputs of weights are divided among
    the cores. Each core keeps the master and the slots of its own share. At the start of a step, all cores gather the upper
    halves of all shares. Shares that extend beyond the last output are padded with 0. If not `sharded`, all cores update all
    weights, with the same bits. All cores also update weights of groups, because a core computes them as weights of all channels.
    """
    tensor, (divided, grouped) = step.tensors[name], kind_of(step, name)
    size, channels = (tensor.height, tensor.width), tensor.channels
    if grouped or not (divided and sharded):
        ring = "all_reduce_segments" if divided else "all_reduce"
        stage = Stage(f"{gradient}, sum of cores", (), size, gradient, ring=ring)
        return name, step.add_stage(stage, channels, samples=False, wide=True)
    share = segment_outputs(channels, cores)
    stage = Stage(f"{gradient}, sum of cores", (), size, gradient, ring="reduce_scatter")
    total = step.add_stage(stage, share, samples=False, wide=True)
    own = step.add_tensor(f"{name}, own", (*size, share), samples=False, wide=True)
    step.tensors[name] = replace(tensor, wide=False)
    gathers = sum(stage.ring == "all_gather" for stage in step.stages)
    step.stages.insert(gathers, Stage(name, (), size, own, ring="all_gather"))
    return own, total
