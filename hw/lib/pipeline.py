"""Steps of a pipeline, with optional registers."""

from types import SimpleNamespace

from amaranth.hdl import Signal

__all__ = ["pipeline_step"]


def pipeline_step(m, domain, name, values):
    """Names the signals between two pipeline steps, and registers them if `domain` is clocked.

    Parameters
    ----------
    m : Module
    domain : str
        "comb", or the clock domain of a register behind the step. The register has no reset.
    name : str
        Name of the step, a prefix of the signal names.
    values : dict
        Name to value.

    Returns
    -------
    An object with the signals as attributes.
    """
    signals = {key: Signal.like(value, name=f"{name}_{key}", reset_less=True) for key, value in values.items()}
    m.d[domain] += [signal.eq(values[key]) for key, signal in signals.items()]
    return SimpleNamespace(**signals)
