"""Host memory of a training step: the layout of its regions, and conversion of arrays."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from amaranth_tpu.hw.spec.isa import Region

from ..compiler.memory.layout import HostLayout, layout_of
from ..golden.arithmetic import bfloat16
from ..golden.training import TrainingState
from ..ir.tiles import tiles_of
from .lowering import apart_name, back_name, flat_name, is_flat_gather, is_stacked
from .parameters import MASTER, Planes, Stacked, StackedBias
from .sharded_planes import ShardedPlanes
from .tensors import Flat

__all__ = ["Masked", "StepMemory", "blocks_of", "trained_terms"]


class Masked(NamedTuple):
    """Dropout: the factor of kept values, and the numbers of the stages whose results have a mask."""

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
        First samples of the chunks that go through the flat stages together, and the end of the last one.
    dropout : Masked or None
    sharded : bool
        Share masters and slots of weights between the cores of a ring; see :mod:`sim.backward.sharded_planes`.

    Members
    -------
    planes : list of Planes
        Planes of the parameters, in order.
    flat : dict of str to Flat
        Tensors of one position.
    layouts : dict of str to Layout
        The other tensors.
    regions : dict of str to (Region, first vector)
        Places of the tensors in `layouts`.
    targets, logits : Flat
    masks : dict of str to Flat
        Masks of results, by the flat tensor's name.
    transposed_inputs : dict of str to (str, int)
        For gradients of stacked stages, which read the input: the operand's name, and the first vector of its transposed copy in
        INPUT, `[sample][block of n positions][channel, and a row of ones]`. Positions are counted in the gradient's pitch.
    kept : dict of str to int
        Gradients that are kept transposed, for several passes over the batch: the first vectors in SCRATCH.
    sizes : dict of Region to vectors
        Sizes of INPUT, SCRATCH and OUTPUT.
    """

    def __init__(self, lowered, optimizer, n, batch, starts, dropout=None, sharded=True):
        self.cores, self.sharded = lowered.cores, sharded and lowered.cores > 1
        self.lowered, self.training, self.n, self.batch = lowered, lowered.training, n, batch
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
        # Tiles of a plane's last positions extend beyond the plane, where numbers must be finite.
        reach = max((self._reach(*one) for one in trained_terms(lowered)), default=0)
        for region in (Region.INPUT, Region.SCRATCH):
            self.take(region, reach)

    def _reach(self, source, gradient, parameter):
        """Returns the number of vectors from the start of a plane to the end of the last vector that a gradient of weights reads
        of it."""
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
        """Masked stages as {index of the stage: name of the flat tensor}."""
        stages, flattened = self.training.graph.stages, self.lowered.flattened
        names = {number: stages[number].output for number in (self.dropout.stages if self.dropout else ())}
        return {number: flat_name(name) if name in flattened else name for number, name in names.items()}

    def _placed(self, tensor, region):
        return tensor.at(region, self.take(region, tensor.vectors))

    def keep(self, rows):
        """Allocates gradients of parameters that take more than `rows` accumulator rows."""
        mine = {}
        for _, gradient, parameter in trained_terms(self.lowered):
            mine.setdefault(gradient, []).append(self.planes_of(parameter.stage, parameter.term))
        for name, planes in mine.items():
            if sum(one.k_tiles * one.rows for one in planes) > rows:
                each = blocks_of(self.layouts[name]) * planes[0].rows
                self.kept[name] = self.take(Region.SCRATCH, self.batch * each)

    def take(self, region, vectors):
        """Allocates vectors in a region, and returns the first."""
        first = self.sizes[region]
        self.sizes[region] += vectors
        return first

    @property
    def host(self):
        """The memory map as a :class:`HostLayout`."""
        return HostLayout(self.layouts, self.regions, self.sizes, self.n)

    def planes_of(self, stage, term):
        """Returns the :class:`Planes` of a stage's term (None: its bias), or None."""
        return next((one for one in self.planes if (one.parameter.stage, one.parameter.term) == (stage, term)), None)

    # Arrays and bytes

    def pack_input(self, x, targets, masks=None):
        """Packs the image of region INPUT.

        Parameters
        ----------
        x : bfloat16 (batch, input size)
            Samples in the model's order.
        targets : bfloat16 (batch, classes)
            Targets in the order of the model's results.
        masks : dict of int to bfloat16 (batch, height, width, channels)
            With dropout, the masks of stages' results: 0, or the factor of kept values.
        """
        x, targets = np.asarray(x), np.asarray(targets)
        graph = self.training.graph
        for what, values, size in (("samples", x, graph.input_size), ("targets", targets, graph.output_size)):
            if values.dtype != bfloat16 or values.shape != (self.batch, size):
                raise ValueError(f"{what} must be bfloat16 of shape ({self.batch}, {size}), not {values.dtype} {values.shape}")
        values, parts = graph.arrange_input(x), []
        gathered = {gather.tensor.name: gather(values) for gather in self.lowered.gathers}
        for name, made in gathered.items():
            parts.append(self.flat[name].pack(made[:, 0, 0]) if name in self.flat else self.layouts[name].pack(made))
        parts += [
            self._transposed(self.layouts[gradient], gathered[name]) for gradient, (name, _) in self.transposed_inputs.items()
        ]
        ordered = np.array(targets)
        if graph.output_order is not None:
            ordered[:, graph.output_order] = targets
        parts.append(self.targets.pack(ordered))
        parts += [self._packed_mask(number, name, masks or {}) for number, name in self.masked.items()]
        return b"".join(parts).ljust(self.sizes[Region.INPUT] * 2 * self.n, b"\0")

    def _packed_mask(self, number, name, masks):
        """Returns the bytes of a stage's mask, with each position's channels padded to whole tiles."""
        stage, mask = self.training.graph.stages[number], np.asarray(masks.get(number, ()))
        shape = (self.batch, *stage.result_size, stage.channels)
        if mask.dtype != bfloat16 or mask.shape[::3] != shape[::3] or mask.ndim != 4:
            raise ValueError(f"the mask of stage {stage.name} must be bfloat16 of shape {shape}, not {mask.dtype} {mask.shape}")
        mask = mask[:, : shape[1], : shape[2]]
        if not np.isin(mask.astype(np.float32), [0, np.float32(self.dropout.factor)]).all():
            raise ValueError(f"the mask of stage {stage.name} must have no numbers but 0 and {self.dropout.factor}")
        padded = np.pad(mask, ((0, 0), (0, 0), (0, 0), (0, -shape[3] % self.n))).reshape(self.batch, -1)
        return self.masks[name].pack(padded[:, : self.masks[name].channels])

    def _transposed(self, layout, values):
        """Returns the bytes of values (batch, height, width, channels), transposed, for the gradient of this layout."""
        batch, height, width, channels = values.shape
        whole = np.zeros((batch, blocks_of(layout) * self.n, channels + 1), bfloat16)
        positions = np.arange(height)[:, None] * layout.pitch + np.arange(width)
        whole[:, positions, :channels] = values
        whole[:, positions, channels] = 1
        return whole.reshape(batch, -1, self.n, channels + 1).swapaxes(2, 3).tobytes()

    def pack_state(self, state, rank=0):
        """Returns the image of region SCRATCH of core `rank` in a ring from a :class:`sim.golden.training.TrainingState`."""
        scratch = np.zeros((self.sizes[Region.SCRATCH], self.n), "<u2")
        for one, master, slots in zip(self.planes, state.masters, state.slots):
            one.write(scratch, {MASTER: np.asarray(master, np.float32), **slots}, rank)
        return scratch.tobytes()

    def unpack_states(self, data, steps=0):
        """Returns the state of each core after `steps` updates, from the bytes of all cores' regions SCRATCH. In a correct run
        these are equal."""
        scratches = [self._vectors(part) for part in data]
        return [_state_of(found, steps) for found in zip(*(one.read_all(scratches) for one in self.planes))]

    def unpack_images(self, data):
        """Returns the parameters that the last step read on a core, from bytes of its region SCRATCH: bfloat16 in the parameter's
        shape, or None for parameters updated in place."""
        return [one.read_image(self._vectors(data)) for one in self.planes]

    def _vectors(self, data):
        return np.frombuffer(bytes(data), "<u2").astype(np.uint16).reshape(-1, self.n)

    def unpack_logits(self, data):
        """Returns the logits, float32 (batch, classes), in the model's order, from region OUTPUT."""
        return self.training.graph.arrange_output(self.logits.unpack(data))


def _state_of(found, steps):
    """Returns the state from {name: array} of each parameter."""
    slots = [{name: array for name, array in one.items() if name != MASTER} for one in found]
    return TrainingState([one[MASTER] for one in found], slots, steps)


def _layouts(lowered, n, batch):
    """Returns the layouts, by planes, of the tensors of several positions. A gradient has the pitch of its trained weights'
    operand, and its positions are as far apart as the strides. So a kernel position is a fixed distance of vectors between
    gradient and operand. A plane of a gradient that is summed for weights or a bias is padded with zeros to whole blocks of n."""
    readers, flat = lowered.readers(), {gather.tensor.name for gather in lowered.gathers if is_flat_gather(gather)}
    tensors = {name: tensor for name, tensor in lowered.tensors.items() if name not in flat}
    layouts = {name: layout_of(tensor, n, batch, readers.get(name, ()), planar=True) for name, tensor in tensors.items()}
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
        layout = layouts[name]
        layouts[name] = replace(layout, behind=blocks_of(layout) * n - (layout.tensor.height + layout.below) * layout.pitch)
        if layouts[name].behind < 0:
            layouts[name] = layout
    return layouts


def _wider(layout, pitch):
    """Returns a layout with more padding columns; the padding before the first sample has as many rows."""
    top, left = divmod(layout.lead, layout.pitch)
    return replace(layout, beside=pitch - layout.tensor.width, lead=top * pitch + left)


def blocks_of(layout):
    """Returns the number of blocks of n positions from a plane's first position to its last, zeros between rows included."""
    return -(-((layout.tensor.height - 1) * layout.pitch + layout.tensor.width) // layout.n)


def trained_terms(lowered):
    """Yields (source, gradient of the sums, parameter) of the trained terms of stages that are not flat. The gradient's positions
    have the spacing of the positions that the term reads."""
    names = {one.stage: one.name for one in lowered.training.gradients}
    for one in lowered.training.parameters:
        if one.term is not None and one.stage not in lowered.flat:
            term, size = lowered.terms[one.stage][one.term], lowered.training.graph.stages[one.stage].sums_size
            yield term.source, apart_name(names[one.stage], term.stretch(size)), one
