"""Operators that choose among results, which the host computes after the network."""

from ..host_part import ALWAYS, LeftToHost
from ..registry import FINAL, operator

__all__ = []

_ATTRIBUTES = ("axis", "keepdims", "select_last_index", "largest", "sorted", "center_point_box")


@operator(*ALWAYS, group=FINAL, on_constants=False, joins=True, attributes=_ATTRIBUTES)
def choose(step, tensor):
    """Ends the network before the operator."""
    raise LeftToHost(step.node)
