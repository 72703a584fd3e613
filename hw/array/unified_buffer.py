"""The unified buffer. It holds operands and results, one vector of bfloat16 per row."""

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import bits_for

from ..lib.hierarchy import instantiate
from ..lib.memories import NO_COLLISIONS
from ..spec.memory_ports import memory_port

__all__ = ["UnifiedBufferLane", "UnifiedBuffer"]


class UnifiedBufferLane(wiring.Component):
    """One lane of the unified buffer: a two-port memory, and the registers that delay the address for the next lane.

    Parameters
    ----------
    depth : int
        Rows.
    skew : int
        Cycles from this lane's read to the next lane's read, at least 1.

    Members
    -------
    address_i, address_o : row
        Operand addresses of this lane and of the next one.
    x : 16, out
        The operand, two cycles after `address_i`: a register separates the memory from the array, which may be far away.
    port_address : row, in
    port_write, port_read : 1, in
    port_i, port_o : 16
        The lane's part of the vector port.
    """

    def __init__(self, *, depth, skew):
        self.depth = depth
        self.skew = skew
        address = bits_for(depth - 1)
        super().__init__(
            {
                "address_i": In(address),
                "address_o": Out(address),
                "x": Out(16),
                "port_address": In(address),
                "port_write": In(1),
                "port_i": In(16),
                "port_read": In(1),
                "port_o": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = Memory(shape=16, depth=self.depth, init=[], attrs=NO_COLLISIONS)
        operand = memory.read_port()
        write, read = memory.write_port(), memory.read_port()
        m.d.comb += [
            operand.en.eq(1),
            operand.addr.eq(self.address_i),
            # One physical port: it writes or it reads, at one address.
            write.addr.eq(self.port_address),
            write.en.eq(self.port_write),
            write.data.eq(self.port_i),
            read.addr.eq(self.port_address),
            read.en.eq(self.port_read),
            self.port_o.eq(read.data),
        ]
        x = Signal(16, reset_less=True)
        m.d.sync += x.eq(operand.data)
        m.d.comb += self.x.eq(x)
        previous = self.address_i
        for stage in range(self.skew):
            delayed = Signal(len(self.address_i), name=f"address_{stage}", reset_less=True)
            m.d.sync += delayed.eq(previous)
            previous = delayed
        m.d.comb += self.address_o.eq(previous)
        return m


class UnifiedBuffer(wiring.Component):
    """`depth` rows of `n` bfloat16, with two ports.

    The operand port feeds the systolic array. The *address* is skewed, not the data: lane r reads r * `skew` cycles after
    lane 0. This costs `skew` address registers a lane instead of a triangle of data registers. `x[0]` appears two cycles after
    `address`. The vector port moves whole vectors.

    Parameters
    ----------
    n : int
        Lanes.
    depth : int
        Rows.
    skew : int
        Cycles between the operands of neighbouring lanes, at least 1: the latency of a cell.

    Members
    -------
    address : row, in
    x : 16 n, out
        Operands, lane 0 lowest; `x[r]` appears 2 + r `skew` cycles after `address`.
    vectors : memory port, in
        The vector port; see :func:`hw.spec.memory_ports.memory_port`.
    """

    def __init__(self, *, n, depth, skew):
        if not isinstance(skew, int) or skew < 1:
            raise ValueError(f"skew must be at least 1, not {skew!r}")
        self.n = n
        self.depth = depth
        self.skew = skew
        address = bits_for(depth - 1)
        super().__init__({"address": In(address), "x": Out(16 * n), "vectors": In(memory_port(address, n))})

    def elaborate(self, platform):
        m = Module()
        address = self.address
        for r in range(self.n):
            following = Signal(len(address), name=f"address_{r}")
            instantiate(
                m,
                platform,
                lambda: UnifiedBufferLane(depth=self.depth, skew=self.skew),
                name=f"lane_{r}",
                module="tpu_unified_buffer_lane",
                address_i=address,
                address_o=following,
                x=self.x.word_select(r, 16),
                port_address=self.vectors.address,
                port_write=self.vectors.write,
                port_i=self.vectors.vector.word_select(r, 16),
                port_read=self.vectors.read,
                port_o=self.vectors.operand.word_select(r, 16),
            )
            address = following
        return m
