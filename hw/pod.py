"""A pod, which is one design with several cores in a ring."""

from amaranth import Cat, ClockDomain, Module
from amaranth.hdl import Instance, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from .bus.axi import axi4_stream_signature
from .config import ConfigError
from .lib.skid_buffer import SkidBuffer
from .spec.operations import link_user_layout
from .spec.registers import MOST_CORES
from .tpu import Tpu

__all__ = ["Pod"]

#: Members of a core that the pod connects itself.
_INSIDE = ("aclk", "aresetn", "s_axis_ring", "m_axis_ring")


class Pod(wiring.Component):
    """Identical cores in a ring. The port `m_axis_ring` of each core drives the port `s_axis_ring` of the next core, modulo
    `cores`.

    Parameters
    ----------
    config : hw.config.Config
        The configuration of each core, with `ring`.
    cores : int
        2 to 8.
    link_latency : int
        Number of pipeline registers in each link. They cut its paths in both directions.

    Members
    -------
    aclk, aresetn : 1, in
        Clock and reset of all cores.
    core0_s_axil, core0_m_axi_read, core0_m_axi_write, core0_irq, core1_s_axil ...
        The ports of each core.

    Raises
    ------
    ConfigError
        If `cores` is out of range, the latency is negative, or the cores lack a ring.
    """

    def __init__(self, config, *, cores, link_latency=0):
        if not 2 <= cores <= MOST_CORES:
            raise ConfigError(f"cores must be 2 to {MOST_CORES} in a ring, not {cores}")
        if link_latency < 0:
            raise ConfigError(f"link_latency must not be negative, not {link_latency}")
        if not config.ring:
            raise ConfigError("cores in a ring need ring; switch it on")
        self.config, self.cores, self.link_latency = config, cores, link_latency
        self.core = Tpu(config)
        members = self.core.signature.members
        super().__init__(
            {
                "aclk": In(1),
                "aresetn": In(1),
                **{
                    f"core{rank}_{name}": member
                    for rank in range(cores)
                    for name, member in members.items()
                    if name not in _INSIDE
                },
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = sync = ClockDomain("sync")
        m.d.comb += [sync.clk.eq(self.aclk), sync.rst.eq(~self.aresetn)]
        links = [self._link(f"link{i}") for i in range(self.cores)]
        for rank in range(self.cores):
            inside = {
                "aclk": self.aclk,
                "aresetn": self.aresetn,
                "m_axis_ring": links[rank],
                "s_axis_ring": self._delayed(m, rank - 1, links[rank - 1]),
            }
            ports = {}
            for (name, *rest), member, _ in self.core.signature.flatten(self.core):
                value = inside[name] if name in inside else getattr(self, f"core{rank}_{name}")
                for step in rest:
                    value = getattr(value, step)
                port = "_".join((name, *rest)).replace("m_axi_read_", "m_axi_").replace("m_axi_write_", "m_axi_")
                ports[f"{'i' if member.flow is In else 'o'}_{port}"] = Value.cast(value)
            m.submodules[f"core{rank}"] = Instance("tpu", **ports)
        return m

    def _link(self, name):
        return axi4_stream_signature(data_width=self.config.vector_width, user_width=link_user_layout().size).create(path=(name,))

    def _delayed(self, m, index, link):
        """Returns the output of a link after its registers. `index` is the number of the link."""
        for stage in range(self.link_latency):
            following = self._link(f"link{index % self.cores}_{stage}")
            payload, payload_after = (Cat(side.tdata, side.tuser, side.tlast) for side in (link, following))
            m.submodules[f"link{index % self.cores}_{stage}"] = buffer = SkidBuffer(payload=len(payload))
            m.d.comb += [
                buffer.i.valid.eq(link.tvalid),
                buffer.i.payload.eq(payload),
                link.tready.eq(buffer.i.ready),
                following.tvalid.eq(buffer.o.valid),
                payload_after.eq(buffer.o.payload),
                buffer.o.ready.eq(following.tready),
            ]
            link = following
        return link
