"""The short name of the Python API, `amaranth_tpu.tpu`."""

from amaranth_tpu.sim import tpu
from amaranth_tpu.sim.tpu import *  # noqa: F403

__all__ = tpu.__all__
__getattr__ = tpu.__getattr__
__doc__ = tpu.__doc__
