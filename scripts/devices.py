"""The largest core that fits each FPGA."""

from hw.config import PRESETS, Config

from .fpga import implement
from .targets import PARTS, RESOURCES, Target

__all__ = ["largest_cores"]


def largest_cores(names, folder, *, preset="tiny", progress=None):
    """Synthesizes cores of 2 x 2, 4 x 4, ... until one fits none of the parts.

    Parts that Yosys does not tell apart share their netlists, with what is too large for the smallest of them.

    Parameters
    ----------
    names : list of str
        Of :data:`scripts.targets.PARTS`.
    folder : pathlib.Path
        For the tools' files.
    preset : str
        Whose buffers, in rows, and whose cells the cores have.
    progress : callable or None
        Gets texts.

    Returns
    -------
    list of dict
        `part`; `n` of the largest that fits, or None; `used` by it, or by the smallest that there is; `next`: what the next
        size would take, or None beyond n = 128; `available`.
    """
    needs, base = {}, PRESETS[preset]

    def need(part, n):
        key = part.family, part.synthesis, n
        if key not in needs:
            config = Config(n=n, cell_stages=base.cell_stages, unified_buffer_depth=max(2 * n, base.unified_buffer_depth),
                            accumulator_depth=base.accumulator_depth, bias_depth=base.bias_depth)
            report = implement(config, Target(part.name, part), folder / f"{part.name}-n{n}",
                               progress=lambda text: progress and progress(f"n = {n} for {part.name}: {text}"))
            needs[key] = {resource: report[resource] for resource in RESOURCES}
        return needs[key]

    def fits(part, n):
        return all(count <= part.available[resource] for resource, count in need(part, n).items())

    results = []
    for part in map(PARTS.get, names):
        n = 2
        while n <= 128 and fits(part, n):
            n *= 2
        results.append({"part": part.name, "n": n // 2 if n > 2 else None, "used": need(part, max(2, n // 2)),
                        "next": need(part, n) if n <= 128 else None, "available": part.available})
    return results
