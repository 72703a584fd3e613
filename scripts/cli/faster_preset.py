"""The preset that `--explain` names if it is faster than the chosen core."""

from dataclasses import replace

from amaranth_tpu.hw.config import ConfigError
from amaranth_tpu.sim.compiler.errors import CompileError

__all__ = ["faster_preset", "show_faster"]

_OF_ANY_SIZE = None, "default", "training", "transformer", "vision"
_LEAST = 0.1


def faster_preset(core, config, cycles, presets, compiled, **others):
    """Returns `preset` and `cycles` of the fastest preset, as a dict. Returns None unless it takes a tenth fewer cycles, and for
    the preset of a board.

    Parameters
    ----------
    core : CoreChoice
        The options of the core, which change each preset, too.
    config : Config
        The chosen core.
    cycles : int
        Cycles on this core.
    presets : iterable of str
    compiled : callable
        Returns the program for a Config.
    others : dict
        Further fields of the presets, as in :meth:`.CoreChoice.config`.
    """
    found = []
    for preset in presets if core.preset in _OF_ANY_SIZE else ():
        try:
            other = replace(core, preset=preset).config(**others)
            if other != config:
                found.append({"preset": preset, "cycles": compiled(other).predicted_cycles})
        except (CompileError, ConfigError):
            continue
    best = min(found, key=lambda one: one["cycles"], default=None)
    return best if best and best["cycles"] <= (1 - _LEAST) * cycles else None


def show_faster(console, plan):
    """Prints the entry `faster` of a plan."""
    if best := plan["faster"]:
        fewer = 1 - best["cycles"] / plan["cycles"]
        console.print(f"--preset {best['preset']}: {best['cycles']:,} cycles, {fewer:.0%} fewer", highlight=False)
