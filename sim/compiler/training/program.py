"""The program of a training step, and the images of its host memory."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amaranth_tpu.hw.config import Config
from amaranth_tpu.hw.spec.isa import Region

from ...golden.arithmetic import bfloat16
from ..codegen.ring_exchange import ring_words
from ..image import encoded, with_tiles
from ..program import check_regions
from .constants import Constants

__all__ = ["MatrixProgram", "make_matrix_program"]


@dataclass(frozen=True, eq=False)
class MatrixProgram:
    """The compiled program of a step, from :func:`sim.compiler.training.compile.compile_graph`. Arrays of tensors have the shapes
    of :mod:`sim.golden.steps`, (batch or 1, height, width, channels).

    Parameters
    ----------
    model : bytes
        Contents of region MODEL. Execution begins at offset 0.
    instructions : int
        Number of instructions, including HALT.
    batch : int
        Number of samples that a core processes.
    cores : int
        Number of cores in the ring. Each core executes this program with its own host memory.
    predicted_cycles : int
        Cycles of a step with the default memory latency, predicted by :mod:`sim.compiler.timing.model`.
    ops : tuple of Op
        The instructions, without HALT.
    """

    model: bytes
    instructions: int
    batch: int
    cores: int
    predicted_cycles: int
    config: Config = field(repr=False)
    lowered: Any = field(repr=False)
    constants: Constants = field(repr=False)
    ops: tuple = field(repr=False)

    @property
    def step(self):
        return self.lowered.step

    @property
    def useful_macs(self):
        """Returns the multiplications of results and gradients with weights that are not constants."""
        return sum(_macs(one, product) for one in self.lowered.sums for product in getattr(one, "products", ()))

    @property
    def ring_words(self):
        """Returns the number of 32-bit words that each core sends in a step."""
        return ring_words(self.ops, self.cores, self.config.n)

    @property
    def sizes(self):
        """Returns the size of each region in bytes, {region: bytes}."""
        sizes = {region: vectors * self.config.vector_bytes for region, vectors in self.lowered.sizes.items()}
        return sizes | {Region.MODEL: len(self.model)}

    def with_factors(self, factors):
        """Returns the contents of region MODEL with the factors of a step, {name in `StepGraph.factors`: bfloat16}."""
        tiles = [
            (
                self.constants.place(tensor),
                self.lowered.matrix(tensor, "number").pack(np.full((1, 1, 1), factors[name], bfloat16)),
            )
            for name, tensor in self.step.factors.items()
        ]
        return with_tiles(self.model, self.instructions, self.config, tiles)

    def pack(self, region, values):
        """Returns the contents of region INPUT or SCRATCH, from {tensor: array}. The rest is zeros."""
        image, size = bytearray(self.sizes[region]), self.config.vector_bytes
        for name, array in values.items():
            matrix = self.lowered.matrix(name)
            assert matrix.region is region
            data = matrix.pack(array if matrix.form == "samples" else array.reshape(array.shape[-3:]))
            image[matrix.vector * size : matrix.vector * size + len(data)] = data
        return bytes(image)

    def unpack(self, data, name):
        """Returns a tensor, (batch or 1, height, width, channels), from the bytes of its region."""
        tensor = self.step.tensors[name]
        values = self.lowered.matrix(name).unpack(data, tensor.shape)
        return values.reshape(-1, *tensor.shape)


def _macs(sums, product):
    """Returns the multiplications of a product of matrices, without padding."""
    if product.kind != "matrix" or product.weights.region is Region.MODEL:
        return 0
    geometry = product.weights.geometry
    rows = geometry.batch * geometry.positions
    if not product.turned:
        inputs = geometry.positions if product.own and product.by_rows else product.source.channels
        return rows * inputs * sums.shape.channels
    return rows * product.source.channels * sums.shape.channels


def make_matrix_program(lowered, constants, config, cores, ops, cycles):
    """Returns the :class:`MatrixProgram` with the given instructions, which are in their final order and take `cycles` cycles."""
    words = encoded(ops, config, (len(ops) + 1) * config.instruction_bytes)
    model = b"".join([*words, constants.pack()])
    batch = lowered.geometry.batch
    made = MatrixProgram(model, len(words), batch, cores, cycles, config, lowered, constants, tuple(ops))
    check_regions({region.name: size for region, size in made.sizes.items()})
    return made
