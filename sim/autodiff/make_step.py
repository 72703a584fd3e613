"""Reverse differentiation: from a network, a loss and an optimizer to the graph of a training step.

Rules add ordinary stages, from the last stage of the network to the first. :mod:`sim.autodiff.loss` has the rule for the logits,
:mod:`sim.autodiff.results` the rules from an output to the sums of its stage, and :mod:`sim.autodiff.operands` the rules from
sums to operands. The gradient of a tensor is a sum with one term for each stage that reads the tensor, in the order of these
stages and of their terms.
"""

from ..ir.losses import Loss
from ..ir.stage import ChannelNorm
from .batch_norms import add_batch_norm, add_batch_norm_gradient
from .loss import add_loss
from .norms import add_norm, add_norm_gradient
from .operands import copy_terms, of_all_copies, source_term, start_term, weights_term
from .results import add_sums_gradient, factor_term
from .rings import add_sum_of_cores
from .stages import add_like, identity, is_plain
from .updates import add_norm_factor, add_update, times

__all__ = ["make_step"]


def make_step(network, optimizer, cores=1, *, counted=False, inputs=(), loss=Loss.CROSS_ENTROPY, sharded=True):
    """Returns the training step of a network.

    Parameters
    ----------
    network : sim.ir.graph.Graph
        Ends in logits.
    optimizer : sim.ir.optimizers.Sgd or Adam
    cores : int
        Cores of a ring.
    counted : bool
        True: the loss of each position has a factor that the host writes, for example 0 for padding.
    inputs : sequence of str
        Inputs that get a gradient, too.
    loss : sim.ir.losses.Loss
    sharded : bool
        True: each core of a ring updates its share of the weights. False: every core updates all weights. The bits are equal.
        Gradients with `clip_norm` are not shared, as each core needs the norm of all.

    Returns
    -------
    sim.ir.graph.Graph
    """
    step = network.copied()
    step.stages = []
    for stage in network.stages:
        if isinstance(stage.norm, ChannelNorm):
            add_batch_norm(step, stage, cores)
        elif stage.norm:
            add_norm(step, stage)
        else:
            step.stages.append(stage)
    trained = [name for name, one in network.parameters.items() if not one.is_average]
    reverse = _Reverse(step, network.stages, network.reached([*trained, *inputs]), cores)
    reverse.start(add_loss(step, loss, counted))
    for number in reversed(range(len(network.stages))):
        reverse.stage(number)
    for name in inputs:
        step.gradients[name] = reverse.add_gradient(name)
    updated, has_norm = {}, optimizer.clip_norm is not None
    for name in trained:
        master, gradient = name, reverse.add_gradient(name)
        if cores > 1:
            master, gradient = add_sum_of_cores(step, name, gradient, cores, sharded and not has_norm)
        updated[name], step.gradients[name] = master, gradient
        if not has_norm:
            add_update(step, optimizer, name, master, gradient)
    of_file = {name: times(step, step.gradients[name], step.parameters[name].scale) for name in updated if has_norm}
    factor = add_norm_factor(step, of_file) if has_norm else None
    for name, master in updated.items() if has_norm else ():
        add_update(step, optimizer, name, master, step.gradients[name], factor)
    return step


def _copied(step, name, terms):
    """Returns the tensor of which a gradient is a copy, or None. `terms` are the terms of the gradient of tensor `name`."""
    term, *others = terms
    ones = step.constants.get(term.weights)
    is_copy = not others and ones is not None and step.is_diagonal(term, step.tensors[name].shape) and bool((ones == 1).all())
    return term.source if is_copy and not step.tensors[term.source].wide else None


class _Reverse:
    """The backward pass over a network's stages.

    Members
    -------
    moved : set of str
        Tensors that depend on a parameter, or on an input that gets a gradient.
    terms : dict of str to list of ((int, int), Term)
        Terms of the gradient of each tensor. The pair of numbers is the number of the stage that reads the tensor, and the place
        of the operand in that stage.
    """

    def __init__(self, step, stages, moved, cores):
        self.step, self.stages, self.moved, self.cores, self.terms = step, stages, moved, cores, {}

    def start(self, gradient):
        """Records the gradient of the network's output. If the output is sums alone, it is the gradient of the last sums."""
        last = next(stage for stage in self.stages if stage.output == self.step.output)
        if is_plain(last):
            self.step.sums_gradients[last.output] = gradient
        else:
            self._give(last.output, (len(self.stages), 0), identity(self.step, gradient))

    def _give(self, name, place, term):
        self.terms.setdefault(name, []).append((place, term))

    def _terms_of(self, name):
        return [term for _, term in sorted(self.terms.get(name, ()), key=lambda entry: entry[0])]

    def add_gradient(self, name):
        """Adds the gradient of a parameter or an input. Returns the name of the gradient."""
        step, terms = self.step, self._terms_of(name)
        if name in step.ties:
            terms = [of_all_copies(step, term, step.ties[name]) for term in terms]
        return add_like(step, name, f"gradient of {name}", terms, wide=name in step.parameters)

    def stage(self, number):
        """Adds the gradient of a stage's sums, and records the terms that it adds to the gradients of the stage's operands."""
        step, stage = self.step, self.stages[number]
        gradient = self._sums_gradient(number, stage) if stage.output in self.moved else None
        if gradient is None:
            return
        if stage.start in self.moved:
            self._give(stage.start, (number, -1), start_term(step, stage.start, gradient))
        for place, term in enumerate(stage.terms):
            if term.source in self.moved:
                for one in copy_terms(step, term, gradient) if term.copies else (source_term(step, term, gradient),):
                    self._give(term.source, (number, place), one)
            if term.weights in self.moved:
                self._give(term.weights, (number, place), weights_term(step, term, gradient))

    def _sums_gradient(self, number, stage):
        """Returns the name of the gradient of a stage's sums. Returns None if the loss does not depend on the sums."""
        step, name = self.step, stage.output
        if name in step.sums_gradients:
            return step.sums_gradients[name]
        terms = self._terms_of(name)
        if not terms:
            return None
        if isinstance(stage.norm, ChannelNorm):
            made = add_batch_norm_gradient(step, stage, terms, self.cores)
        elif stage.norm:
            made = add_norm_gradient(step, stage, terms)
        elif is_plain(stage) and (same := _copied(step, name, terms)):
            made = same
        else:
            if stage.times in self.moved:
                self._give(stage.times, (number, len(stage.terms)), factor_term(step, stage, terms))
            made = add_sums_gradient(step, stage, terms)
        step.sums_gradients[name] = made
        return made
