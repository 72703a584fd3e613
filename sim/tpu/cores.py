"""The arguments `core` and `memory` of the Python API."""

from amaranth_tpu.hw.config import Config, ConfigError, from_preset

from ..rtl.host_memory import parse_memory
from ..trainer.errors import ArgumentError
from .arguments import shown

__all__ = ["config_of", "host_of", "training_preset"]


def config_of(core, preset="default"):
    """Returns the :class:`hw.config.Config` for an argument `core`: a Config, the name of a preset, or None for `preset`. Raises
    ConfigError for other arguments."""
    if isinstance(core, Config):
        return core
    if not isinstance(core, (str, type(None))):
        raise ConfigError(
            f"core must be a Config, the name of a preset, or None, not {shown(core)}; make one with tpu.Config(n=4)"
        )
    return from_preset(core or preset)


def training_preset(graph):
    """Returns the name of the preset that trains a network by default: `transformer` if it multiplies two tensors."""
    products = any(graph.is_product(term) for stage in graph.stages for term in stage.terms)
    return "transformer" if products else "training"


def host_of(memory):
    """Returns the :class:`.HostMemory` for the text in an argument `memory`. Raises ArgumentError."""
    try:
        return parse_memory(memory)
    except ValueError as error:
        raise ArgumentError(str(error)) from None
