"""A counter of the groups of a row. A group is `lanes` elements of one tile."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

__all__ = ["GroupCounter"]


class GroupCounter(wiring.Component):
    """Counts the groups of a row, tile by tile. After the last group of a row it restarts.

    Parameters
    ----------
    groups : int
        Groups of a tile.
    tiles : shape
        Shape of `tiles`.

    Members
    -------
    step : 1, in
        Advance to the next group.
    tiles : tiles, in
        Tiles of a row.
    end : in
        Index of the last group in the last tile.
    group : out
        Index of the group in its tile.
    tile_end, last_tile, last : 1, out
        `tile_end`: the group is the last of its tile. `last_tile`: the group is in the last tile. `last`: the group is the last
        of its row.
    """

    def __init__(self, *, groups, tiles):
        self.groups = groups
        super().__init__(
            {
                "step": In(1),
                "tiles": In(tiles),
                "end": In(range(groups)),
                "group": Out(range(groups)),
                "tile_end": Out(1),
                "last_tile": Out(1),
                "last": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        tile = Signal(self.tiles.shape(), init=1)
        m.d.comb += [
            self.tile_end.eq(self.group == self.groups - 1),
            self.last_tile.eq(tile == self.tiles),
            self.last.eq(self.last_tile & (self.group == self.end)),
        ]
        with m.If(self.step):
            m.d.sync += self.group.eq(self.group + 1)
            with m.If(self.tile_end):
                m.d.sync += tile.eq(tile + 1)
            with m.If(self.last):
                m.d.sync += [self.group.eq(0), tile.eq(1)]
        return m
