"""The search for the largest core that fits each FPGA."""

from ..config import from_preset
from .implement import implement
from .targets import PARTS, RESOURCES, Target

__all__ = ["largest_cores"]


def largest_cores(names, folder, *, preset="tiny", progress=None, implement=implement):
    """Finds the largest core for each part. It starts with the largest core for which the part has multipliers, and synthesizes
    smaller cores until one fits.

    Parts that are the same for Yosys share their netlists.

    Parameters
    ----------
    names : list of str
        Keys of :data:`hw.fpga.targets.PARTS`.
    folder : pathlib.Path
        Folder for the tools' files.
    preset : str
        Preset from which the cores have their parameters except n: the sizes of buffers, in rows, and the stages of cells.
    progress : callable or None
        Called with progress messages.

    Returns
    -------
    list of dict
        `part`; `n` of the largest core that fits, or None; `used`: its resources, or the resources of the smallest core if none
        fits; `available`; `next`: a lower bound of the resources of the next larger core.
    """
    needs = {}

    def need(part, n):
        key = part.family, part.synthesis, n
        if key not in needs:
            config = from_preset(preset, n=n)
            report = implement(
                config,
                Target(part.name, part),
                folder / f"{part.name}-n{n}",
                progress=lambda text: progress and progress(f"n = {n} for {part.name}: {text}"),
            )
            needs[key] = {resource: report[resource] for resource in RESOURCES}
        return needs[key]

    results = []
    for part in map(PARTS.get, names):
        sizes = part.sizes
        larger = {"dsp": (2 * sizes[0]) ** 2}
        for n in sizes:
            used = need(part, n)
            fits = all(count <= part.available[resource] for resource, count in used.items())
            if fits:
                break
            larger = used
        results.append({"part": part.name, "n": n if fits else None, "used": used, "available": part.available, "next": larger})
    return results
