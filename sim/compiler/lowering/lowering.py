"""Lowers a :class:`sim.ir.graph.Graph` to sums of matrix products (:mod:`sim.compiler.lowering.sums`)."""

from collections import Counter
from dataclasses import replace

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ...functions.functions import NONE
from ...golden.arithmetic import bfloat16
from ...ir.stage import Stage
from ...ir.tiles import tiles_of
from ..memory.matrices import Geometry, matrix_of
from .convolutions import band_product, is_window, patches_of, window_product
from .copies import copies_for, gradient_copies
from .forms import NotMatrices, forms_of, geometries_of
from .grouping import Grouping
from .ring import divided_tensors, gathers_of
from .sums import Expansion, Product, Result

__all__ = ["Lowered", "lower", "with_products_apart"]


class Lowered:
    """A step as sums of matrix products, and the addresses of all matrices. `given` is the step before all passes.

    Members
    -------
    sums : list of MatrixSum, Expansion or AllReduce
        In an order in which they can be computed.
    matrices : dict of (str, str) to Matrix
        By name and form.
    geometry : Geometry
        Geometry of tensors without samples.
    geometries : dict of (int, int) to Geometry
        By height and width of the tensors of samples.
    transposed : dict of str to int
        First vector, in region SCRATCH, of a matrix in which each tile is transposed.
    sizes : dict of Region to int
        Vectors of each region. Region MODEL: only constants, without weights.
    """

    def __init__(self, folded, n, batch, given):
        self.folded, self.given, step = folded, given, folded.step
        self.step, self.geometry, self.geometries = step, Geometry(n, batch, 1, 1, unit=n), geometries_of(step, n, batch)
        self.forms = forms_of(step, folded.views) | dict.fromkeys(folded.transposed, "transposed")
        self._turned = {one.source for stage in step.stages for one in stage.terms if one.lanes and one.groups == 1}
        self.copies = gradient_copies(step, self.geometries, n)
        self.matrices, self.sums, self.transposed = {}, [], {}
        self.exchanged = {stage.start for stage in step.stages if stage.ring and stage.ring != "all_gather"}
        self.divided, self.gathers = divided_tensors(step), []
        self._exchanged = self.exchanged | {stage.output for stage in step.stages if stage.ring == "reduce_scatter"}
        self._nothing = {}
        self.sizes, self._weights = dict.fromkeys(Region, 0), _weights(step)
        self._tiles = 0  # vectors of all constant weights, which are stored in the order in which they are loaded
        self._kept = {after: name for name, after in step.state.items()}
        #: The number 1, as a tile that always stays on the chip.
        self.one = matrix_of("identity", "number", n, n, self.geometry, Region.MODEL)

    def matrix(self, name, form=None, size=None):
        """Returns the matrix of a tensor, and allocates it at the first call. A tensor that a kept tensor becomes has the address
        of the kept tensor. `size` is the height and width of a sample. Default: the tensor's."""
        tensor, step = self.step.tensors[name], self.step
        form = form or self.forms.get(name) or "samples"
        geometry = self.geometries.get(size or (tensor.height, tensor.width), self.geometry)
        key = name, form if size is None else f"{form} {size}"
        if key in self.matrices:
            return self.matrices[key]
        if name in self.folded.views:
            whole, first = self.folded.views[name]
            return self.matrix(whole).view(name, tensor.height * tensor.width, first)
        rows, channels = self._shape(form, name, tensor.channels, geometry)
        # A diagonal is a copy of the upper half, made of products; see `Expansion`.
        wide = tensor.wide and form != "diagonal" or name in step.constants and form in ("vector", "positions")
        kept = self.matrix(self._kept[name], form) if name in self._kept else None
        blocks = tensor.height if form == "turned" else 1
        pitch = tiles_of(rows, geometry.n) * geometry.n + 1 if name in self.folded.stacks else 0  # row 0 is in no tile of weights
        fields = {"layout": self._layout(name, wide), "pitch": pitch, "wide": wide, "blocks": blocks}
        made = matrix_of(name, form, rows, channels, geometry, kept.region if kept else self._region(name), **fields)
        if self.is_weights(made):
            made, self._tiles = replace(made, vector=self._tiles), self._tiles + tiles_of(made.size, geometry.n) * geometry.n
        else:
            made = replace(made, vector=kept.vector if kept else self.take(made.region, made.size))
        made = replace(made, copies=copies_for(made, self.copies, self.take))
        self.matrices[key] = made
        return made

    def _layout(self, name, is_wide):
        if name in self._turned:
            return "sets"
        is_whole = name in self.step.constants or name in self.step.outputs and not self.step.state
        return "numbers" if name in self._exchanged or is_wide and is_whole else "planes"

    def take(self, region, vectors):
        """Allocates vectors of a region, whole tiles, and returns the first."""
        first = self.sizes[region]
        self.sizes[region] += -(-vectors // self.geometry.n) * self.geometry.n
        return first

    def is_weights(self, matrix):
        """Returns True if a matrix has constants that only LOAD_WEIGHTS reads, as tiles."""
        return matrix.name in self._weights and matrix.form in ("turned", "diagonal")

    def is_nothing(self, matrix, tile, row):
        """Returns True if n rows of a tile of constant weights are -0, so that they change no sum."""
        if not self.is_weights(matrix):
            return False
        key = matrix.name, matrix.form
        if key not in self._nothing:
            bits = np.frombuffer(matrix.pack(self.step.constants[matrix.name]), "<u2")
            self._nothing[key] = (bits.reshape(matrix.tiles, -1, self.geometry.n**2) == 0x8000).all(axis=2)
        return bool(self._nothing[key][tile, row // self.geometry.n])

    def _region(self, name):
        step = self.step
        if name in step.constants or name in step.factors.values():
            return Region.MODEL
        if name in (*step.inputs, step.targets, step.counted):
            return Region.INPUT
        return Region.OUTPUT if name in step.outputs else Region.SCRATCH

    def _shape(self, form, name, channels, geometry):
        n, tensor = geometry.n, self.step.tensors[name]
        positions = tensor.height * tensor.width
        if form in ("samples", "repeated"):
            return geometry.rows, channels
        if form == "positions":
            return positions if tensor.name in self.folded.stacks else -(-positions // n) * n, channels
        if form == "transposed":
            return channels, geometry.rows
        if form == "turned":
            return channels if name in self.divided else tiles_of(channels, n) * n, tensor.width
        return tiles_of(channels, n) * (1 if form == "vector" else n * tensor.height), n

    def read_beyond(self):
        """Returns the matrices of samples in region SCRATCH whose rows after the positions of a sample are read, but not kept
        from step to step: as vectors of positions, or as weights."""
        products = [one for some in self.sums for one in some.products]
        read = [one.source for one in products if one.kind == "bands"] + [
            one.weights for one in products if one.own and one.by_rows
        ]
        found = {one.vector: one for one in read if one.region is Region.SCRATCH and not self.step.state}
        return [one for one in found.values() if one.geometry.period > one.geometry.positions]

    @property
    def readers(self):
        """Returns the number of readers of each tensor in a step, {name: readers}. State has a reader in the next step."""
        read = [matrix.name for one in self.sums for matrix in one.reads]
        return Counter([*read, *self.step.state, *self.step.state.values()])

    # Products

    def product(self, stage, term):
        """Returns the :class:`Product` of a term."""
        step = self.step
        source, weights, output = (step.tensors[name] for name in (term.source, term.weights, stage.output))
        if term.copies:
            return Product("copied", self.matrix(term.source), self.matrix(term.weights, "turned"), copies=term.copies)
        if not output.samples and (summed := step.summed(term)):
            return self._summed_by_ones(self.matrix(summed))
        is_number = term.weights not in step.parameters and _is_number(term, source, weights, (*stage.size, output.channels))
        if is_number or step.is_diagonal(term, (*stage.size, output.channels)):
            form = "number" if weights.channels == 1 else "diagonal"
            return Product("diagonal", self._rows(term.source, stage.size, output.samples), self.matrix(term.weights, form))
        if not output.samples:
            return self._gradient(stage, term)
        if term.lanes:
            return band_product(self, stage, term)
        if is_window(step, term, (weights.height, weights.width) if term.transposed else stage.size) or term.groups > 1:
            return window_product(self, stage, term)
        if term.transposed:
            rows, weights = self.matrix(term.source), self.matrix(term.weights)
            return Product("matrix", rows, weights, turned=True, by_rows=True, own=True)
        rows = self._rows(term.source, stage.size)
        if weights.samples:
            return Product("matrix", rows, self.matrix(term.weights), by_rows=not term.swapped, own=True)
        if term.weights in self.folded.views:
            return Product("matrix", rows, self.matrix(term.weights), by_rows=True)
        return Product("matrix", rows, self.matrix(term.weights, "turned"), by_rows=term.swapped)

    def _gradient(self, stage, term):
        form, step = self.forms[stage.output], self.step
        source, vectors = (step.tensors[name] for name in (term.source, term.weights))
        if form == "vector":
            if source.shape != (1, 1, 1) or term.source not in step.constants or step.constants[term.source] != 1:
                raise NotMatrices(f"{stage.output}: a gradient of this kind can't be compiled")
            return Product("total", None, self.matrix(term.weights, "samples").padded)
        size = vectors.height, vectors.width
        if not vectors.samples or term.groups > 1:
            raise NotMatrices(f"{stage.output}: the gradient of weights of {term.groups} groups can't be compiled")
        has_windows = is_window(step, term, size)
        if has_windows and (copies := self.copies.get(term)):
            gradient = self.matrix(term.weights).copy(copies.gradient)
            return self._summed(gradient, copies.windows(self.matrix(term.source)))
        left = patches_of(self, term, size) if has_windows else self._rows(term.source, size)
        rows = left, self.matrix(term.weights)
        left, right = rows if form == "positions" else rows[::-1]
        return self._summed(left, right)

    def _summed_by_ones(self, summed):
        """Returns the product that sums the rows of a matrix, or else its channels, with their sum in all lanes."""
        n = summed.geometry.n
        if summed.form in ("positions", "column"):
            return Product("total", None, summed)
        if summed.form == "vector":  # one row, whose tiles are its rows
            axes = tuple(axis._replace(stride=n) if axis.of == "tile" else axis for axis in summed.axes)
            summed = replace(summed, name=f"{summed.name}, as a row", rows=1, channels=summed.rows * n, axes=axes)
        ones = np.ones((summed.blocks, summed.channels, n), bfloat16)
        return Product("matrix", summed, self.matrix(self.step.constant(f"ones x {ones.shape}", ones), "turned"))

    def _summed(self, left, right):
        """Returns the product that sums over all rows of two matrices. Rows of several positions are transposed once, and then
        stored."""
        turned = left.form != "transposed"
        if turned and left.region is Region.SCRATCH and left.geometry.period > 1 and left.name not in self.transposed:
            self.transposed[left.name] = self.take(Region.SCRATCH, left.size)
        return Product("matrix", left, right, turned=turned, by_rows=True)

    def _rows(self, name, size, samples=True):
        """Returns the matrix of a tensor, or, for sums of samples, of a constant for all samples of a height and width."""
        return self.matrix(name) if self.step.tensors[name].samples == samples else self.matrix(name, "repeated", size)

    # Stages

    def start(self, stage):
        """Returns the matrix of a stage's initial sums, or None."""
        if stage.start is None:
            return None
        tensor, output = (self.step.tensors[name] for name in (stage.start, stage.output))
        if tensor.samples or not output.samples:
            return self.matrix(stage.start)
        return self.matrix(stage.start, "vector" if tensor.height * tensor.width == 1 else "positions")

    def made(self, stage):
        """Returns the matrix that a stage writes: its output, or a part of it."""
        whole, tensor = self.matrix(stage.output), self.step.tensors[stage.output]
        if not tensor.samples or stage.result_size == (tensor.height, tensor.width):
            return whole
        name = f"{stage.output}, {stage.result_size} at {stage.origin}"
        return whole.part(name, self.geometries[stage.result_size], stage.origin)

    def _beside(self, stage, name):
        """Returns the matrix of an operand of a stage's results. A constant has the same rows for each sample."""
        if self.step.tensors[stage.output].samples and name in self.step.constants:
            return self._rows(name, stage.result_size)
        return self.matrix(name)

    def result(self, stage):
        beside = [name and self._beside(stage, name) for name in (stage.times, stage.select and stage.select.tensor)]
        made, select = self.made(stage), stage.select
        if made.form == "samples" and any(one and one.geometry != self.geometries[stage.size] for one in beside):
            raise NotMatrices(f"{stage.output}: a factor of another size can't be compiled as matrix products")
        spread = select.window if select and select.index else None
        is_any = stage.pool is not None and not stage.pool.is_apart(stage.size)
        windows = {"pool": stage.pool, "has_any_windows": is_any, "index": stage.index, "spread": spread}
        return Result(made, stage.function, stage.softmax, *beside, **windows)


def _weights(step):
    terms = [term for stage in step.stages for term in stage.terms]
    others = {name for stage in step.stages for name in (stage.start, stage.times, stage.select and stage.select.tensor)}
    return {term.weights for term in terms} & step.constants.keys() - others - {term.source for term in terms}


def _is_number(term, source, weights, shape):
    """Returns True if a term multiplies a tensor of one channel by one number. `shape` is the shape of the sums."""
    plain = not (term.transposed or weights.samples) and weights.shape == (1, 1, 1)
    plain = plain and term.stride == term.apart == (1, 1) and term.padding == (0, 0)
    return plain and source.shape == shape and source.channels == 1


def with_products_apart(step):
    """Divides each stage with a function and a product, such as a ReLU with dropout, into two stages, because MULTIPLY applies no
    function. Returns a :class:`sim.ir.graph.Graph`. Raises NotMatrices if a stage selects as well."""
    tensors, stages = dict(step.tensors), []
    for stage in step.stages:
        if stage.select and (stage.times or stage.pool or stage.function != NONE):
            raise NotMatrices(f"{stage.output}: a selection with a function, pooling or a product can't be compiled")
        if stage.times and (stage.function != NONE or stage.softmax or stage.pool):
            name = f"{stage.output}, before the product"
            tensors[name] = tensors[stage.output]
            stages.append(replace(stage, output=name, times=None))
            stage = Stage(stage.output, start=name, size=stage.result_size, times=stage.times)
        stages.append(stage)
    return replace(step, tensors=tensors, stages=stages, constants=dict(step.constants))


def lower(folded, n, batch, given):
    """Returns the :class:`Lowered` of a step for `batch` samples on an array of size `n`. The parameters are as in
    :class:`Lowered`. Raises CompileError."""
    lowered = Lowered(folded, n, batch, given)
    step = lowered.step
    for name, after in step.state.items():
        lowered.matrix(name), lowered.matrix(after)
    for name in filter(None, (*step.inputs, step.targets, step.counted, *step.outputs)):
        lowered.matrix(name)
    Grouping(lowered).add_all()
    turned = [one for some in lowered.sums for one in some.products if one.copies and len(one.copies.turned)]
    for region in {one.source.region for one in turned}:
        lowered.take(region, n)  # a weight tile may begin at the last rows of a matrix
    lowered.gathers = gathers_of([one for one in step.stages if one.ring == "all_gather"], lowered.matrix, lowered.sums)
    for (name, form), matrix in list(lowered.matrices.items()):
        if form in ("diagonal", "number") and matrix.region is Region.SCRATCH:
            vector = lowered.matrix(name, "vector")
            place = max((place for place, one in enumerate(lowered.sums, 1) if vector in one.writes), default=0)
            lowered.sums.insert(0 if name in step.state else place, Expansion(name, vector, matrix))
    return lowered
