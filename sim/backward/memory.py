"""Host memory of a training step: the layout of its regions, and the conversion of arrays."""

from functools import partial
from typing import NamedTuple

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.memory.host_tensors import host_tensor
from ..compiler.memory.layout import PLANES, HostLayout, layout_of
from ..golden.arithmetic import bfloat16
from ..ir.tiles import tiles_of
from .lowering import apart_name, back_name, flat_name, is_flat_gather, is_stacked
from .parameters import Planes, Stacked, StackedBias
from .sharded_planes import ShardedPlanes
from .tensors import Flat

__all__ = ["Masked", "StepMemory", "blocks_of", "trained_terms"]


class Masked(NamedTuple):
    """The dropout of a training step: the factor of kept values, and the numbers of the stages whose results have a mask."""

    factor: bfloat16
    stages: tuple[int, ...]


class StepMemory:
    """The memory map of a training step.

    Parameters
    ----------
    lowered : Lowered
    optimizer : Sgd or Adam
    n, batch : int
    starts : tuple of int
        First sample of each chunk, and the end of the last chunk. The samples of a chunk go through the dense stages together.
    dropout : Masked or None
    sharded : bool
        Divide masters and optimizer state of weights among the cores of a ring; see :mod:`sim.backward.sharded_planes`.

    Members
    -------
    planes : list of Planes
        Planes of each parameter, in the order of the parameters.
    flat : dict of str to Flat
        Tensors with one position per sample, by name.
    layouts : dict of str to Layout
        Layouts of the tensors with several positions, by name.
    regions : dict of str to (Region, first vector)
        Region and first vector of each tensor in `layouts`.
    targets, logits : Flat
    masks : dict of str to Flat
        Dropout masks, by the name of the flat tensor to which they apply.
    transposed_inputs : dict of str to (str, int)
        Transposed operands for the gradients of stacked weights, which read the input. {name of the gradient: (name of the
        operand, first vector of the transposed copy in INPUT)}. The copy is `[sample][block of n positions][channel, and a row
        of ones]`. Positions are counted with the row length (pitch) of the gradient.
    kept : dict of str to int
        First vector of each gradient that is kept transposed in SCRATCH, for several passes over the batch.
    sizes : dict of Region to vectors
        Sizes of INPUT, SCRATCH and OUTPUT, in vectors.
    """

    def __init__(self, lowered, optimizer, n, batch, starts, dropout=None, sharded=True):
        self.cores, self.sharded, self.optimizer = lowered.cores, sharded and lowered.cores > 1, optimizer
        self.lowered, self.training, self.n, self.batch = lowered, lowered.training, n, batch
        self.network, self.output = self.training.graph, "logits"
        self.sizes = {Region.INPUT: 0, Region.SCRATCH: 0, Region.OUTPUT: 0}
        self.planes, self.flat, self.regions = [], {}, {}
        self.transposed_inputs, self.kept, self.masks, self.dropout = {}, {}, {}, dropout
        for one in self.training.parameters:
            self.planes.append(self._planes(one, dict(optimizer.slots)))
            self.take(Region.SCRATCH, self.planes[-1].size)
        self.layouts = _layouts(lowered, n, batch)
        self._place_input(starts)
        self._place_flat()
        for name in self.masked.values():
            self.masks[name] = self._placed(self.flat[name], Region.INPUT)
        for name, layout in self.layouts.items():
            if name not in self.regions:
                self.regions[name] = Region.SCRATCH, self.take(Region.SCRATCH, layout.size)
        # The tiles at the end of a plane extend beyond the plane, and the numbers there must be finite.
        reach = max((self._reach(*one) for one in trained_terms(lowered)), default=0)
        for region in (Region.INPUT, Region.SCRATCH):
            self.take(region, reach)

    def _reach(self, source, gradient, parameter):
        """Returns the number of vectors that the gradient of a weight may read, counted from the start of a plane of the
        source."""
        term, layout = self.lowered.terms[parameter.stage][parameter.term], self.layouts[source]
        y, x = ((size - 1) * apart - before for size, apart, before in zip(term.kernel, term.dilation, term.padding))
        return max(0, y * layout.pitch + x) + blocks_of(self.layouts[gradient]) * self.n

    def _planes(self, parameter, slots):
        n, first = self.n, self.take(Region.SCRATCH, 0)
        shape = None if parameter.term is None else self.lowered.terms[parameter.stage][parameter.term].weights.shape
        if is_stacked(self.lowered, parameter, n):
            return Stacked(parameter, n, slots, first, shape)
        weights = next((one for one in self.planes if one.parameter.stage == parameter.stage), None)
        if isinstance(weights, Stacked):
            return StackedBias(parameter, n, slots, first, shape, weights)
        if self.sharded and parameter.term is not None:
            return ShardedPlanes(parameter, n, slots, first, shape, self.cores)
        return Planes(parameter, n, slots, first, shape)

    def _place_input(self, starts):
        last = self.training.graph.stages[-1]
        for gather in self.lowered.gathers:
            name = gather.tensor.name
            if is_flat_gather(gather):
                self.flat[name] = self._placed(Flat(gather.tensor.channels, self.n, starts), Region.INPUT)
            else:
                self.regions[name] = Region.INPUT, self.take(Region.INPUT, self.layouts[name].size)
        for source, gradient, parameter in trained_terms(self.lowered):
            if is_stacked(self.lowered, parameter, self.n):
                size = blocks_of(self.layouts[gradient]) * (self.layouts[source].tensor.channels + 1)
                self.transposed_inputs[gradient] = source, self.take(Region.INPUT, self.batch * size)
        self.targets = self._placed(Flat(last.channels, self.n, starts), Region.INPUT)
        self.logits = self._placed(Flat(last.channels, self.n, starts, size=2), Region.OUTPUT)

    def _place_flat(self):
        lowered, blocks = self.lowered, (*range(0, self.batch, self.n), self.batch)
        stages, channels = self.training.graph.stages, {}
        for number in lowered.flat[:-1]:
            channels[stages[number].output] = stages[number].channels
        for one in self.training.gradients:
            if one.stage in lowered.flat:
                channels[one.name] = stages[one.stage].channels
        for names, of in ((lowered.flattened, flat_name), (lowered.returned, lambda name: flat_name(back_name(name)))):
            for name in names:
                tensor = lowered.tensors[name]
                channels[of(name)] = tensor.height * tensor.width * tiles_of(tensor.channels, self.n) * self.n
        for name, count in channels.items():
            self.flat[name] = self._placed(Flat(count, self.n, blocks), Region.SCRATCH)

    @property
    def masked(self):
        """Returns the stages with dropout masks, as {stage number: name of the flat tensor to which the mask applies}."""
        stages, flattened = self.training.graph.stages, self.lowered.flattened
        names = {number: stages[number].output for number in (self.dropout.stages if self.dropout else ())}
        return {number: flat_name(name) if name in flattened else name for number, name in names.items()}

    def _placed(self, tensor, region):
        return tensor.at(region, self.take(region, tensor.vectors))

    def keep(self, rows):
        """Allocates memory in SCRATCH for transposed gradients that are read more than once. This is needed if the gradients of
        the parameters take more than `rows` accumulator rows."""
        mine = {}
        for _, gradient, parameter in trained_terms(self.lowered):
            mine.setdefault(gradient, []).append(self.planes_of(parameter.stage, parameter.term))
        for name, planes in mine.items():
            if sum(one.k_tiles * one.rows for one in planes) > rows:
                each = blocks_of(self.layouts[name]) * planes[0].rows
                self.kept[name] = self.take(Region.SCRATCH, self.batch * each)

    def take(self, region, vectors):
        """Allocates vectors in a region. Returns the index of the first vector."""
        first = self.sizes[region]
        self.sizes[region] += vectors
        return first

    @property
    def host(self):
        """Returns the memory map as a :class:`HostLayout`."""
        return HostLayout(self.layouts, self.regions, self.sizes, self.n)

    def planes_of(self, stage, term):
        """Returns the :class:`Planes` of a stage's term, or of the stage's bias if `term` is None. Returns None if this term or
        bias is not trained."""
        return next((one for one in self.planes if (one.parameter.stage, one.parameter.term) == (stage, term)), None)

    # Arrays

    @property
    def tensors(self):
        """Returns {name: HostTensor} of the tensors that the host writes or reads; see :mod:`sim.backward.step_program`. Samples,
        transposed samples, targets and masks are in region INPUT."""
        found = {(number, name): one for number, planes in enumerate(self.planes) for name, one in planes.tensors.items()}
        for gather in self.lowered.gathers:
            name = gather.tensor.name
            if name in self.flat:
                found[name] = self.flat[name].host_tensor
            else:
                layout, (region, first) = self.layouts[name], self.regions[name]
                found[name] = host_tensor(region, first, layout.size, layout.pack)
        for gradient, (source, first) in self.transposed_inputs.items():
            layout = self.layouts[gradient]
            size = self.batch * blocks_of(layout) * (self.layouts[source].tensor.channels + 1)
            pack = partial(_transposed, blocks_of(layout) * self.n, layout)
            found["transposed", gradient] = host_tensor(Region.INPUT, first, size, pack)
        masks = {("mask", name): mask.host_tensor for name, mask in self.masks.items()}
        return found | masks | {"targets": self.targets.host_tensor, self.output: self.logits.host_tensor}

    def inputs(self, x, targets, masks=None, counted=None):
        """Returns {name in `tensors`: array} of region INPUT.

        Parameters
        ----------
        x : bfloat16 (batch, input size)
            Samples, in the order of the ONNX model.
        targets : bfloat16 (batch, classes)
            Targets, in the order of the ONNX model's results.
        masks : dict of int to bfloat16 (batch, height, width, channels)
            Dropout masks of stages' results, by stage number. Values are 0 or the factor of kept values.
        counted : None
            All positions are counted.
        """
        assert counted is None
        x, targets = np.asarray(x), np.asarray(targets)
        graph = self.network
        for what, values, size in (("samples", x, graph.input_size), ("targets", targets, graph.output_size)):
            if values.dtype != bfloat16 or values.shape != (self.batch, size):
                raise ValueError(f"{what} must be bfloat16 of shape ({self.batch}, {size}), not {values.dtype} {values.shape}")
        values = graph.arrange_input(x)
        gathered = {gather.tensor.name: gather(values) for gather in self.lowered.gathers}
        found = {("transposed", gradient): gathered[source] for gradient, (source, _) in self.transposed_inputs.items()}
        found |= {name: made[:, 0, 0] if name in self.flat else made for name, made in gathered.items()}
        found["targets"] = ordered = np.array(targets)
        if graph.output_order is not None:
            ordered[:, graph.output_order] = targets
        return found | {("mask", name): self._mask(number, name, masks or {}) for number, name in self.masked.items()}

    def _mask(self, number, name, masks):
        """Returns a stage's dropout mask, (batch, channels of the flat tensor). The channels of each position are padded to whole
        tiles."""
        stage, mask = self.network.stages[number], np.asarray(masks.get(number, ()))
        shape = (self.batch, *stage.result_size, stage.channels)
        if mask.dtype != bfloat16 or mask.shape[::3] != shape[::3] or mask.ndim != 4:
            raise ValueError(f"the mask of stage {stage.name} must be bfloat16 of shape {shape}, not {mask.dtype} {mask.shape}")
        mask = mask[:, : shape[1], : shape[2]]
        if not np.isin(mask.astype(np.float32), [0, np.float32(self.dropout.factor)]).all():
            raise ValueError(f"the mask of stage {stage.name} must have no numbers but 0 and {self.dropout.factor}")
        padded = np.pad(mask, ((0, 0), (0, 0), (0, 0), (0, -shape[3] % self.n))).reshape(self.batch, -1)
        return padded[:, : self.masks[name].channels]


def _transposed(rows, layout, values):
    """Returns the bytes of transposed operands from values (batch, height, width, channels), for a gradient with this layout:
    `[sample][block of n positions][channel, and a row of ones]`, with `rows` positions of a sample in all blocks."""
    batch, height, width, channels = values.shape
    whole = np.zeros((batch, rows, channels + 1), bfloat16)
    positions = np.arange(height)[:, None] * layout.pitch + np.arange(width)
    whole[:, positions, :channels] = values
    whole[:, positions, channels] = 1
    return whole.reshape(batch, -1, layout.n, channels + 1).swapaxes(2, 3).tobytes()


def _layouts(lowered, n, batch):
    """Returns the layouts of the tensors with several positions, {name: layout}. Each tile of channels is stored as a plane.

    A gradient has the same row length (pitch) as the operand of its trained weights. The strides define the distance between its
    positions. For each kernel position, the distance between gradient and operand is then constant. If a gradient is summed for
    weights or a bias, its planes are padded with zeros to whole blocks of n positions.
    """
    readers, flat = lowered.readers(), {gather.tensor.name for gather in lowered.gathers if is_flat_gather(gather)}
    tensors = {name: tensor for name, tensor in lowered.tensors.items() if name not in flat}
    layouts = {name: layout_of(tensor, n, batch, readers.get(name, ()), order=PLANES) for name, tensor in tensors.items()}
    trained = [*trained_terms(lowered)]
    alike = [(source, gradient) for source, gradient, one in trained if not is_stacked(lowered, one, n)]
    changed = True
    while changed:
        changed = False
        for pair in alike:
            pitch = max(layouts[name].pitch for name in pair)
            for name in pair:
                if layouts[name].pitch < pitch:
                    layouts[name], changed = _wider(layouts[name], pitch), True
    summed = {one.stage for one in lowered.training.parameters if one.term is None} - {*lowered.flat}
    biased = {one.name for one in lowered.training.gradients if one.stage in summed}
    for name in biased | {name for _, name, _ in trained}:
        layouts[name] = layouts[name].repacked(plane=blocks_of(layouts[name]) * n)
    return layouts


def _wider(layout, pitch):
    """Returns a layout with more padding columns, so that its row length is `pitch`. The padding before the first sample has as
    many rows as before."""
    top, left = divmod(layout.lead, layout.pitch)
    return layout.repacked(beside=pitch - layout.tensor.width, lead=top * pitch + left)


def blocks_of(layout):
    """Returns the number of blocks of n positions from the first to the last position of a plane, including the padding between
    rows."""
    return -(-((layout.tensor.height - 1) * layout.pitch + layout.tensor.width) // layout.n)


def trained_terms(lowered):
    """Yields `(source, gradient, parameter)` for each trained term of a spatial stage. `source` and `gradient` are names of
    tensors. In this version of the gradient, zeros are inserted if needed, so that its positions have the same spacing as the
    positions that the term reads."""
    names = {one.stage: one.name for one in lowered.training.gradients}
    for one in lowered.training.parameters:
        if one.term is not None and one.stage not in lowered.flat:
            term, size = lowered.terms[one.stage][one.term], lowered.training.graph.stages[one.stage].sums_size
            yield term.source, apart_name(names[one.stage], term.stretch(size)), one
