"""The samples a second that `--explain` shows for the core of a board."""

from amaranth_tpu.hw.config import from_preset

from .memory_option import DEFAULT_MEMORY

__all__ = ["at_clock", "own_memory", "show_clock"]


def own_memory(board):
    """Returns the value of `--memory` for the memory of a board. Block RAM has the option's default."""
    return DEFAULT_MEMORY if isinstance(board.memory, int) else f"sdram-90x16@{board.clock_mhz}"


def at_clock(config, cycles, samples, memory):
    """Returns `samples_per_second` at the clock `mhz` of the `board` with this core, and the option `memory` of the cycles, as a
    dict. Returns None for a core of no board, and without cycles."""
    from amaranth_tpu.hw.boards import BOARDS  # its imports are slow

    board = next((one for one in BOARDS.values() if one.name == one.preset and from_preset(one.preset) == config), None)
    if board is None or not cycles:
        return None
    rate = samples * board.clock_mhz * 1e6 / cycles
    return {
        "board": board.name,
        "mhz": board.clock_mhz,
        "samples_per_second": rate,
        "memory": memory,
        "own_memory": own_memory(board),
    }


def show_clock(console, plan):
    """Prints the entry `at_clock` of a plan."""
    if (one := plan["at_clock"]) is None:
        return
    text = f"{one['samples_per_second']:,.0f} samples a second at {one['mhz']} MHz, the clock of {one['board']}"
    if one["memory"] != one["own_memory"]:
        text += f", with --memory {one['memory']}; the board has --memory {one['own_memory']}"
    console.print(text, highlight=False)
