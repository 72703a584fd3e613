"""The core: its blocks and how they are connected."""

from amaranth import ClockDomain, DomainRenamer, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from .activation.result_units import result_units
from .array.accumulators import Accumulators
from .array.bias_port import BiasPort
from .array.buffer_port import BufferPort
from .array.systolic_array import SystolicArray
from .array.unified_buffer import UnifiedBuffer
from .array.update_memory import UpdateMemory
from .array.weight_fifo import WeightFifo
from .array.weight_port import WeightPort
from .array.weight_unpacker import WeightUnpacker
from .bus.axi import axi4_lite_signature, axi4_read_signature, axi4_stream_signature, axi4_write_signature
from .bus.axi_reader import AxiReader
from .bus.axi_writer import AxiWriter
from .bus.read_unit import ReadUnit
from .bus.store_unit import StoreUnit
from .bus.transaction_id import TransactionId
from .bus.transposed_loads import TransposedLoads
from .bus.weight_credits import WeightCredits
from .control.control_registers import ControlRegisters
from .control.decoder import Decoder
from .control.dispatcher import Dispatcher
from .control.fault_latch import FaultLatch
from .control.fetch_unit import FetchUnit
from .control.region_check import RegionCheck
from .control.run_control import RunControl
from .control.stall_reasons import StallReasons
from .lib.hierarchy import instantiate
from .matmul.matmul_unit import MatmulUnit
from .ring.ring_guard import RingGuard
from .ring.ring_unit import RingUnit
from .spec.instruction import Unit
from .spec.isa import Region
from .spec.operations import link_user_layout, matmul_layout, pass_layout, ring_layout, transfer_layout
from .spec.registers import ADDRESS_WIDTH

__all__ = ["Tpu"]

#: Write bursts whose answer may be outstanding.
OUTSTANDING_WRITES = 16


class Tpu(wiring.Component):
    """A bfloat16 tensor processing unit behind an AXI4 manager and an AXI4-Lite subordinate port.

    The core has one clock and two resets. Only `aresetn` resets the registers, the run control, the bus managers and the links of
    the ring (domain `bus`). All other blocks are in reset between runs (domain `sync`). So each run, and each recovery from a
    fault, begins from the same state, except for the contents of the memories on the chip and the weights in the array.

    Parameters
    ----------
    config : hw.config.Config

    Members
    -------
    aclk : 1, in
        Clock.
    aresetn : 1, in
        Reset, active low, synchronous.
    s_axil : AXI4-Lite, in
    m_axi_read, m_axi_write : AXI4, out
        The channels of one port.
    irq : 1, out
        High while an enabled interrupt is pending.
    s_axis_ring, m_axis_ring : AXI4-Stream, in and out
        The links from the previous core and to the next core, in a core with `ring`.
    """

    def __init__(self, config):
        self.config = config
        bus = {"address_width": config.address_width, "data_width": config.bus_width, "id_width": config.axi_id_width}
        link = axi4_stream_signature(data_width=config.vector_width, user_width=link_user_layout().size)
        super().__init__(
            {
                "aclk": In(1),
                "aresetn": In(1),
                "s_axil": In(axi4_lite_signature(address_width=ADDRESS_WIDTH)),
                "m_axi_read": Out(axi4_read_signature(**bus)),
                "m_axi_write": Out(axi4_write_signature(**bus)),
                "irq": Out(1),
                **({"s_axis_ring": In(link), "m_axis_ring": Out(link)} if config.ring else {}),
            }
        )

    def elaborate(self, platform):
        m = Module()
        config = self.config
        self._clock(m)

        bus = DomainRenamer("bus")
        widths = {"address_width": config.address_width, "data_width": config.bus_width}
        m.submodules.registers = bus(registers := ControlRegisters(config=config))
        m.submodules.run = bus(run := RunControl(config=config))
        m.submodules.transaction_id = bus(transaction_id := TransactionId())
        attributes = {"cache": config.axi_cache, "prot": config.axi_prot, "id_width": config.axi_id_width}
        m.submodules.reader = bus(reader := AxiReader(**widths, **attributes))
        m.submodules.writer = bus(writer := AxiWriter(**widths, outstanding=OUTSTANDING_WRITES, **attributes))

        matmul = matmul_layout(config)
        loads, tiles, stores = (transfer_layout(config, unit) for unit in (Unit.LOAD, Unit.WEIGHTS, Unit.STORE))
        moves = {"bus_width": config.bus_width, "vector_width": config.vector_width}
        m.submodules.fetch = fetch = FetchUnit(
            address_width=config.address_width, bus_width=config.bus_width, instruction_bytes=config.instruction_bytes
        )
        m.submodules.decoder = decoder = Decoder(config=config)
        m.submodules.dispatcher = dispatcher = Dispatcher(config=config)
        m.submodules.load = load = ReadUnit(transfer=loads, **moves)
        m.submodules.weight_credits = credits = WeightCredits(
            address_width=config.address_width,
            tiles=WeightUnpacker.depth if config.weight_formats else config.weight_fifo_depth,
            tile_beats=(1 if config.weight_formats else config.n) * config.beats_per_vector,
            vector_beats=config.beats_per_vector,
        )
        m.submodules.weights = weights = ReadUnit(transfer=tiles, **moves, longest=credits.longest)
        m.submodules.store = store = StoreUnit(
            transfer=stores, **moves, outstanding=OUTSTANDING_WRITES, latency=config.port_latency
        )
        m.submodules.matmul = matmul_unit = MatmulUnit(
            n=config.n,
            lead=config.array_lead,
            latency=config.latency,
            read_latency=config.read_latency,
            matmul=matmul,
            pass_=pass_layout(config),
        )

        def block(make, name, domain="sync"):
            return instantiate(m, platform, make, name=name, module=f"tpu_{name}", domain=domain)

        activation = block(lambda: result_units(config), "activation")
        weight_fifo = block(
            lambda: WeightFifo(n=config.n, tiles=config.weight_fifo_depth, skew=config.latency, weight_rows=config.weight_rows),
            "weight_fifo",
        )
        buffer = block(
            lambda: UnifiedBuffer(n=config.n, depth=config.unified_buffer_depth, skew=config.latency), "unified_buffer"
        )
        array = block(lambda: SystolicArray(n=config.n, stages=config.cell_stages, weight_rows=config.weight_rows), "array")
        accumulators = block(
            lambda: Accumulators(
                n=config.n,
                depth=config.accumulator_depth,
                bias_depth=config.bias_depth,
                latency=config.read_latency,
                bias_halves=config.training,
                bias_reads=bool(config.update_lanes),
            ),
            "accumulators",
        )
        m.submodules.buffer_port = port = BufferPort(
            n=config.n, depth=config.unified_buffer_depth, transfer=loads, ring=config.ring, latency=config.port_latency
        )
        m.submodules.bias_port = bias_port = BiasPort(n=config.n, bias_depth=config.bias_depth, transfer=loads)
        sizes = {"n": config.n, "transfer": tiles, "transposes": config.attention, "weight_rows": config.weight_rows}
        if config.weight_formats:
            m.submodules.weight_unpacker = weight_port = WeightUnpacker(**sizes, tiles=config.weight_fifo_depth)
        else:
            m.submodules.weight_port = weight_port = WeightPort(**sizes)
        m.submodules.stalls = stalls = StallReasons(config=config)

        # Host ports.
        connect(m, flipped(self.s_axil), registers.bus)
        connect(m, reader.bus, flipped(self.m_axi_read))
        connect(m, writer.bus, flipped(self.m_axi_write))
        connect(m, fetch.host, reader.fetch)
        connect(m, load.host, reader.load)
        connect(m, weights.host.request, credits.i)
        connect(m, credits.o, reader.weights.request)
        connect(m, weights.host.answer, reader.weights.answer)
        connect(m, store.host, writer.client)
        connect(m, transaction_id.o, reader.own, writer.own)
        m.d.comb += [
            transaction_id.asked.eq(reader.bus.arvalid),
            reader.urgent.eq(credits.urgent & weight_port.few if config.weight_formats else credits.urgent),
            credits.freed.eq(weight_port.taken if config.weight_formats else weight_fifo.freed),
        ]

        # Instructions.
        connect(m, fetch.o, decoder.i)
        connect(m, decoder.o, dispatcher.i)
        connect(m, dispatcher.interlock, matmul_unit.interlock)
        connect(m, dispatcher.weights, weights.port)
        connect(m, dispatcher.store, store.port)
        connect(m, dispatcher.matmul, matmul_unit.port)
        connect(m, dispatcher.activate, activation.port)
        m.d.comb += fetch.pc.eq(registers.pc)

        # Operands: unified buffer and weight FIFO -> array.
        connect(m, weights.vectors, weight_port.load)
        connect(m, weight_port.vectors, weight_fifo.vectors)
        if config.weight_formats:
            m.d.comb += weight_port.freed.eq(weight_fifo.freed)
        connect(m, matmul_unit.tiles, weight_fifo.tiles)
        connect(m, weight_fifo.edge, array.weights)
        m.d.comb += [buffer.address.eq(matmul_unit.address), array.x_i.eq(buffer.x)]

        # Sums: accumulators -> array -> accumulators -> activation unit.
        connect(m, matmul_unit.sums, accumulators.passes)
        connect(m, accumulators.edge, array.sums)
        connect(m, activation.sums, accumulators.results)
        connect(m, bias_port.biases, accumulators.biases)
        if config.update_lanes:
            sizes = {"n": config.n, "depth": config.update_depth, "groups": config.n // config.update_lanes}
            updates = block(lambda: UpdateMemory(**sizes, transfer=stores), "update_memory")
            connect(m, activation.biases, accumulators.updates)
            connect(m, activation.updates, updates.updates)
            connect(m, store.updates, updates.stored)

        # The vector port of the unified buffer: loads, results and stores.
        if config.transpose:
            m.submodules.transposed_loads = transposed = TransposedLoads(n=config.n, transfer=loads)
            connect(m, dispatcher.load, transposed.port)
            connect(m, transposed.load, load.port)
            connect(m, load.vectors, bias_port.load, transposed.i)
            connect(m, transposed.o, port.load)
        else:
            connect(m, dispatcher.load, load.port)
            connect(m, load.vectors, bias_port.load, port.load)
        connect(m, activation.buffer, port.results)
        connect(m, store.buffer, port.store)
        connect(m, port.buffer, buffer.vectors)

        # Run control: registers, bus managers, stalls of the array, progress.
        connect(m, registers.run, run.registers)
        connect(m, run.reader, reader.control)
        connect(m, run.writer, writer.control)
        connect(m, matmul_unit.issue, stalls.issue)
        connect(m, dispatcher.stalls, stalls.dispatch)
        connect(m, stalls.o, run.array)
        m.d.comb += [
            self._stopped.eq(run.stopped),
            self.irq.eq(run.irq),
            stalls.shifting.eq(weight_fifo.shifting),
            run.progress.eq(matmul_unit.sums.write | dispatcher.placed.valid | activation.moves),
            run.halted.eq(dispatcher.halted),
            run.present_pc.eq(decoder.fault.pc),
        ]
        m.submodules.model_region = bus(check := RegionCheck(address_width=config.address_width))
        connect(m, check.o, fetch.region)
        for region in Region:
            checks = [check.region] if region is Region.MODEL else []
            connect(m, registers.regions[region.value], decoder.regions[region.value], *checks)

        faults, layouts = [load.fault, weights.fault, store.fault], [loads, tiles, stores]
        if config.ring:
            ring = block(lambda: RingUnit(config=config), "ring_unit", domain="bus")
            m.submodules.ring_guard = bus(guard := RingGuard())
            self._connect_ring(m, ring, guard, registers, run, dispatcher, decoder, port)
            faults.append(ring.fault)
            layouts.append(ring_layout(config))
        # The first fault ends the run. Priority in one cycle: loads, stores, ring, decoder.
        m.submodules.fault_latch = latch = FaultLatch(layouts=layouts, slots=config.in_flight)
        for fault, unit in zip(faults, latch.units):
            connect(m, fault, unit)
        connect(m, decoder.fault, latch.decoder)
        connect(m, dispatcher.placed, latch.placed)
        connect(m, latch.o, run.fault)
        return m

    def _clock(self, m):
        """Defines the clock domains: `bus`; `sync`, in reset between runs.

        The reset of `sync` has its own register, since its readers are spread over the whole FPGA.
        """
        self._stopped = Signal()
        m.domains.bus = bus = ClockDomain("bus")
        m.domains.sync = sync = ClockDomain("sync")
        bus.clk = sync.clk = self.aclk
        sync.rst = Signal(init=1, name="rst")
        m.d.comb += bus.rst.eq(~self.aresetn)
        m.d.bus += sync.rst.eq(self._stopped)

    def _connect_ring(self, m, ring, guard, registers, run, dispatcher, decoder, port):
        connect(m, dispatcher.ring, ring.port)
        connect(m, flipped(self.s_axis_ring), ring.received)
        connect(m, ring.sent, flipped(self.m_axis_ring))
        connect(m, ring.buffer, port.ring)
        connect(m, registers.ring_position, ring.position, guard.position)
        connect(m, ring.links, guard.links, registers.ring_links)
        connect(m, ring.events, run.ring)
        connect(m, run.state, guard.run)
        connect(m, guard.check, decoder.ring)
        m.d.comb += [ring.running.eq(run.running), registers.ring_refused.eq(guard.refused)]
