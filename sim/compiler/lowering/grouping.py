"""Sums of matrix products from the stages of a step. Stages with the same sums share them, and an update is added to the sums of
its gradient."""

from dataclasses import replace

from ...functions.functions import NONE
from ..memory.matrices import matrix_of
from .convolutions import scattered
from .forms import NotMatrices
from .ring import all_reduce, reduce_scatter_of
from .sums import MatrixSum, Phase, Product

__all__ = ["Grouping"]


class Grouping:
    """Joins stages that share sums. The :class:`.Lowered` gets the sums.

    Members
    -------
    made : dict of str to (int, int)
        Number of the sum that computes a tensor, and of its phase.
    places : dict to (int, int)
        The same for each key of a stage's sums.
    plain : dict
        Tensor of the rounded sums, for each key of a stage's sums.
    wide, rounded, late : set of str
        Binary32 tensors that are only the start of other sums, tensors of rounded sums, and results by table or of a Softmax,
        which are written after the other results of the phase.
    """

    def __init__(self, lowered):
        self.lowered, self.step = lowered, lowered.step
        self.made, self.places, self.plain, self.wide, self.rounded, self.late = {}, {}, {}, set(), set(), set()

    def add_all(self):
        """Adds the sums of all stages whose results are needed. Raises NotMatrices."""
        stages, self.images = _needed(self.step)
        only = {stage.start for stage in stages} - {name for stage in stages for name in replace(stage, start=None).operands}
        only -= {*self.step.state.values()} | self.lowered.exchanged | (self.images - {*self.step.gradients.values()})
        for stage in stages:
            if stage.ring == "all_gather":
                continue
            if stage.ring == "reduce_scatter":
                self.lowered.sums.append(reduce_scatter_of(stage, self.lowered.matrix))
                stage = replace(stage, start=stage.output)
            elif stage.ring:
                gradient, outputs = self.lowered.matrix(stage.start), self.step.tensors[stage.start].channels
                self.lowered.sums.append(all_reduce(stage, gradient, outputs, stage.output not in self.images))
            self._add(replace(stage, ring=None), only)

    def _add(self, stage, starts):
        sums, tensor = self.lowered.sums, self.step.tensors[stage.output]
        is_start = tensor.wide and stage.output in starts
        place = self._place(stage, is_start or stage.output in self.lowered.exchanged)
        if place is None and stage.times and not stage.pool and stage.function == NONE and self.plain.get(stage.sums):
            stage = replace(stage, start=self.plain[stage.sums], terms=())  # the product rounds the sums first
        if place is None:
            is_stored = stage.output in self.step.outputs or not is_start
            is_whole = is_stored and stage.result_size == stage.size
            shape = self.lowered.made(stage) if is_whole else self._shape(stage)
            made = self._sum(stage, shape)
            sums.append(made)
            place = self.places[stage.sums] = len(sums) - 1, 0
        number, phase = self.made[stage.output] = place
        if is_start:
            self.wide.add(stage.output)
            if stage.output not in self.step.outputs:
                return
        sums[number].phases[phase].results.append(self.lowered.result(stage))
        if stage.function.is_table or stage.softmax:
            self.late.add(stage.output)
        if not (tensor.wide or stage.times or stage.select or stage.softmax or stage.pool) and stage.function == NONE:
            self.plain.setdefault(stage.sums, stage.output)
            self.rounded.add(stage.output)

    def _sum(self, stage, shape):
        """Returns the sums of a stage without results. Sums of one bfloat16 tensor are a product by 1, which needs no bias rows.
        Only the sign of a zero can differ."""
        start, copied = self.lowered.start(stage), scattered(self.lowered, stage)
        products = (copied,) if copied else tuple(self.lowered.product(stage, term) for term in stage.terms)
        if start and not products and not start.wide and start.form == shape.form:
            start, products = None, (Product("diagonal", start, self.lowered.one),)
        return MatrixSum(stage.name or stage.output, [Phase(products)], shape, start, is_image=stage.output in self.images)

    def _shape(self, stage):
        tensor = self.step.tensors[stage.output]
        form = "samples" if tensor.samples else self.lowered.forms[stage.output]
        geometry = self.lowered.geometries[stage.size] if tensor.samples else self.lowered.geometry
        rows, channels = self.lowered._shape(form, stage.output, tensor.channels, geometry)
        blocks = tensor.height if form == "turned" else 1
        return matrix_of(stage.output, form, rows, channels, geometry, blocks=blocks)

    def _place(self, stage, is_gradient):
        """Returns the sum, and its phase, to which a stage's result can be added. Returns None if it needs sums of its own. Two
        parameters never share the sums of a gradient: the products of an update are added to them, or cores exchange them."""
        beside = {name for name in (stage.times, stage.select and stage.select.tensor) if name}
        if stage.start in self.wide:
            number, phase = self.made[stage.start]
            phases, operands = self.lowered.sums[number].phases, {*stage.operands} - beside - {stage.start}
            if not self._are_ready(operands, number, False) or not self._are_ready(beside, number, True):
                if self.plain.get(stage.sums):
                    return None
                raise NotMatrices(f"{stage.output}: sums of a gradient are read too late to be compiled")
            if not stage.terms:
                return number, phase
            if stage.sums in self.places:
                return self.places[stage.sums]
            phases.append(Phase(tuple(self.lowered.product(stage, term) for term in stage.terms)))
            self.places[stage.sums] = number, len(phases) - 1
            return self.places[stage.sums]
        place = None if is_gradient else self.places.get(stage.sums)
        if place is None and stage.times and not stage.terms and stage.function == NONE:
            place = self.made[stage.start] if stage.start in self.rounded else None  # the product rounds the sums first
        is_late = any(self.made[name] == place for name in beside & self.late)
        return place if place and not is_late and self._are_ready(beside, place[0], True) else None

    def _are_ready(self, names, number, same):
        return all(name not in self.made or self.made[name][0] < number + same for name in names)


def _needed(step):
    """Returns the stages whose results are needed, and the tensors without samples from which stages of samples are computed."""
    wanted, images, found = {*step.state.values(), *step.outputs}, set(), []
    for stage in reversed(step.stages):
        if stage.output in wanted:
            found.append(stage)
            wanted.update(stage.operands)
            images |= {one.weights for one in stage.terms if step.tensors[one.weights].shape == (1, 1, 1)}
            if step.tensors[stage.output].samples or stage.output in images:
                images.update(name for name in stage.operands if not step.tensors[name].samples)
    return found[::-1], images
