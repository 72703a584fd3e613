"""Steps of a pipeline."""

from types import SimpleNamespace

from amaranth.hdl import Signal

__all__ = ["pipeline_step"]


def pipeline_step(m, domain, name, values):
    """Names what one step of the work hands to the next.

    Parameters
    ----------
    m : Module
    domain : str
        "comb", or the domain of a register behind the step. A register has no reset.
    name : str
        Of the step.
    values : dict
        Name to value.

    Returns
    -------
    The signals, named after step and value, as attributes.
    """
    signals = {key: Signal.like(value, name=f"{name}_{key}", reset_less=True) for key, value in values.items()}
    m.d[domain] += [signal.eq(values[key]) for key, signal in signals.items()]
    return SimpleNamespace(**signals)
