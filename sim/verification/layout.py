"""The regions of a job in host memory."""

from dataclasses import dataclass

__all__ = ["Layout", "lay_out"]


@dataclass
class Layout:
    """Addresses of regions, by name.

    `places` : address of the contents, and its distance from the base. `bases` : base. `ends` : size, which includes the
    distance. `word_bytes` : bytes of an instruction.
    """

    places: dict
    bases: dict
    ends: dict
    word_bytes: int

    @property
    def shifts(self):
        return {name: shift for name, (_, shift) in self.places.items()}

    def pc(self, place):
        """Returns the offset of an instruction in region MODEL."""
        return self.places["MODEL"][1] + place * self.word_bytes


def lay_out(draw, sizes):
    """Returns the :class:`Layout` of regions with contents of `sizes` bytes. They are in different parts of the address space.
    `draw` is the :class:`.Session` that draws it."""
    config, places = draw.config, {}
    bus, most = config.bus_bytes, 1 << config.address_width
    share = most // len(sizes)
    for number, name in enumerate(draw.rng.permutation(list(sizes))):
        room = (share - sizes[name]) // bus
        place = number * share + int(draw.rng.choice([0, room, draw.below(room + 1)])) * bus
        furthest = min(place // 32, (1 << 27) - sizes[name] // 32) + 1
        furthest = furthest if draw.chance(0.3) else min(furthest, 1 << draw.below(28))
        places[str(name)] = place, 32 * draw.below(furthest)
    bases = {name: place - shift for name, (place, shift) in places.items()}
    ends = {name: places[name][1] + size for name, size in sizes.items()}
    # Sizes need not be whole beats.
    ends |= {name: min(end + draw.below(32), most - bases[name]) for name, end in ends.items() if name != "MODEL"}
    return Layout(places, bases, ends, config.instruction_bytes)
