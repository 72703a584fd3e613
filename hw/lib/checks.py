"""Parameter checks for constructors."""

__all__ = ["check_power_of_two"]


def check_power_of_two(name, value, low, high=None):
    """Checks that a parameter is a power of two, at least `low` and at most `high`.

    Raises
    ------
    ValueError
        With the parameter's name and value.
    """
    if not isinstance(value, int) or value < low or (high is not None and value > high) or value & (value - 1):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be a power of two, {limits}, not {value!r}")
