"""Cores on which the programs of random models are executed."""

from amaranth_tpu.hw.config import from_preset

__all__ = ["SIZES", "drawn_core"]

#: Rows of the systolic arrays.
SIZES = (2, 4, 8, 16)


def drawn_core(rng, n):
    """Returns the configuration of a core with `n` rows. Its units and the sizes of its memories are random."""
    name = str(rng.choice(["default", "default", "training", "transformer", "vision"]))
    changes = {"table_lanes": min(8, n), "softmax_lanes": min(4, n)} if name == "transformer" else {}
    if rng.random() < 0.2:
        changes["softmax_lanes"] = int(rng.choice([lanes for lanes in (1, 2, 4, 8, 16) if lanes <= n]))
    changes["normalize"] = changes.get("softmax_lanes", 1) > 1 and bool(rng.random() < 0.7)
    if rng.random() < 0.3:  # small memories, so that small tensors have several tiles
        changes |= {"unified_buffer_depth": int(rng.choice([128, 256, 512])), "accumulator_depth": int(rng.choice([32, 64, 128]))}
    if rng.random() < 0.2:
        changes["bus_width"] = 32
    return from_preset(name, n=n, **changes)
