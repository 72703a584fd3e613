"""The core: its blocks and how they are connected."""

import functools
import operator

from amaranth import ClockDomain, DomainRenamer, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import exact_log2

from .activation.result_units import result_units
from .array.accumulators import Accumulators
from .array.bias_port import BiasPort
from .array.buffer_port import BufferPort
from .array.systolic_array import SystolicArray
from .array.transposer import Transposer
from .array.unified_buffer import UnifiedBuffer
from .array.weight_fifo import WeightFifo
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
from .ring.ring_unit import RingUnit
from .spec.isa import Region
from .spec.operations import link_user_layout, matmul_layout, pass_layout, transfer_layout
from .spec.registers import ADDRESS_WIDTH, IDENTIFIER, MOST_CORES, REGISTER, VERSION

__all__ = ["Tpu"]

#: Write bursts whose answer may be outstanding.
_OUTSTANDING_WRITES = 16


class Tpu(wiring.Component):
    """A bfloat16 tensor processing unit behind an AXI4 manager and an AXI4-Lite subordinate port.

    The core has one clock and two resets. Only `aresetn` resets the registers, the run control and the bus managers (domain
    `bus`). All other blocks are in reset between runs (domain `sync`). So each run, and each recovery from a fault, begins from
    the same state, except for the contents of the memories on the chip and the weights in the array.

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
        bus = {"address_width": config.address_width, "data_width": config.bus_width}
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
        m.submodules.reader = bus(reader := AxiReader(**widths))
        m.submodules.writer = bus(writer := AxiWriter(**widths, outstanding=_OUTSTANDING_WRITES))

        transfer, matmul = transfer_layout(config), matmul_layout(config)
        moves = {"transfer": transfer, "bus_width": config.bus_width, "vector_width": config.vector_width}
        m.submodules.fetch = fetch = FetchUnit(
            address_width=config.address_width, bus_width=config.bus_width, instruction_bytes=config.instruction_bytes
        )
        m.submodules.decoder = decoder = Decoder(config=config)
        m.submodules.dispatcher = dispatcher = Dispatcher(config=config)
        m.submodules.load = load = ReadUnit(**moves)
        m.submodules.weight_credits = credits = WeightCredits(
            address_width=config.address_width,
            tiles=config.weight_fifo_depth,
            tile_beats=config.n * config.beats_per_vector,
            vector_beats=config.beats_per_vector,
        )
        m.submodules.weights = weights = ReadUnit(**moves, longest=credits.longest)
        m.submodules.store = store = StoreUnit(**moves, outstanding=_OUTSTANDING_WRITES)
        m.submodules.matmul = matmul_unit = MatmulUnit(
            n=config.n,
            lead=config.lead,
            latency=config.latency,
            read_latency=config.read_latency,
            matmul=matmul,
            pass_=pass_layout(config),
        )

        def block(make, name, domain="sync"):
            """Adds a block whose size depends on n as a separate module, with its members as ports."""
            return instantiate(m, platform, make, name=name, module=f"tpu_{name}", domain=domain)

        activation = block(lambda: result_units(config), "activation")
        weight_fifo = block(lambda: WeightFifo(n=config.n, tiles=config.weight_fifo_depth, skew=config.latency), "weight_fifo")
        buffer = block(
            lambda: UnifiedBuffer(n=config.n, depth=config.unified_buffer_depth, skew=config.latency), "unified_buffer"
        )
        array = block(lambda: SystolicArray(n=config.n, stages=config.cell_stages), "array", domain="array")
        accumulators = block(
            lambda: Accumulators(
                n=config.n,
                depth=config.accumulator_depth,
                bias_depth=config.bias_depth,
                latency=config.read_latency,
                bias_halves=config.training,
            ),
            "accumulators",
        )
        m.submodules.buffer_port = port = BufferPort(
            n=config.n, depth=config.unified_buffer_depth, transfer=transfer, ring=config.ring
        )
        m.submodules.bias_port = bias_port = BiasPort(n=config.n, bias_depth=config.bias_depth, transfer=transfer)

        # Host ports.
        connect(m, flipped(self.s_axil), registers.bus)
        connect(m, reader.bus, flipped(self.m_axi_read))
        connect(m, writer.bus, flipped(self.m_axi_write))
        connect(m, fetch.host, reader.fetch)
        connect(m, load.host, reader.load)
        connect(m, weights.host.request, credits.i)
        connect(m, credits.o, reader.weights.request)
        connect(m, weights.host.answer, reader.weights.answer)
        connect(m, store.burst, writer.burst)
        connect(m, store.data, writer.data)
        m.d.comb += [
            transaction_id.asked.eq(reader.bus.arvalid),
            *(manager.id.eq(transaction_id.id) for manager in (reader, writer)),
            *(manager.settled.eq(transaction_id.settled) for manager in (reader, writer)),
            reader.urgent.eq(credits.urgent),
            credits.freed.eq(weight_fifo.freed),
            store.answered.eq(writer.answered),
            store.failed.eq(writer.error),
        ]

        # Instructions.
        connect(m, fetch.o, decoder.i)
        connect(m, decoder.o, dispatcher.i)
        m.d.comb += [
            matmul_unit.blocked.eq(dispatcher.blocked),
            dispatcher.held.eq(matmul_unit.held),
            dispatcher.held_slot.eq(matmul_unit.head_slot),
        ]
        connect(m, dispatcher.weights, weights.port)
        connect(m, dispatcher.store, store.port)
        connect(m, dispatcher.matmul, matmul_unit.port)
        connect(m, dispatcher.activate, activation.port)

        # Operands: unified buffer and weight FIFO -> array.
        connect(m, matmul_unit.tiles, weight_fifo.tiles)
        m.d.comb += [
            buffer.address.eq(matmul_unit.address),
            *self._weight_vectors(block, weights, weight_fifo),
            array.x_i.eq(buffer.x),
            array.w_i.eq(weight_fifo.w),
            array.mark_i.eq(weight_fifo.marks),
            array.switch_i.eq(weight_fifo.switches),
        ]

        # Sums: accumulators -> array -> accumulators -> activation unit.
        connect(m, matmul_unit.sums, accumulators.passes)
        connect(m, activation.sums, accumulators.results)
        connect(m, bias_port.biases, accumulators.biases)
        m.d.comb += [array.sums_i.eq(accumulators.top), accumulators.bottom.eq(array.sums_o)]

        # The vector port of the unified buffer: loads, results and stores.
        if config.transpose:
            m.submodules.transposed_loads = transposed = TransposedLoads(n=config.n, transfer=transfer)
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

        rings = []
        if config.ring:
            ring = block(lambda: RingUnit(config=config), "ring_unit", domain="bus")
            self._connect_ring(m, ring, registers, run, dispatcher, decoder, port)
            rings = [ring]

        self._connect_run(m, registers, run, reader, writer)
        self._connect_faults(m, run, decoder, load, weights, store, *rings)
        self._connect_counters(m, run, reader, writer, dispatcher, matmul_unit, weight_fifo, activation, *rings)
        for region in Region:
            m.submodules[f"{region.name.lower()}_region"] = bus(check := RegionCheck(address_width=config.address_width))
            connect(m, registers.regions[region.value], check.region)
            m.d.comb += [decoder.bases[region.value].eq(check.base), decoder.sizes[region.value].eq(check.size)]
        m.d.comb += [
            fetch.base.eq(decoder.bases[Region.MODEL.value]),
            fetch.size.eq(decoder.sizes[Region.MODEL.value]),
            fetch.pc.eq(registers.pc),
            run.halted.eq(dispatcher.halted),
            run.present_pc.eq(decoder.pc),
        ]
        return m

    def _clock(self, m):
        """Defines the clock domains: `bus`; `sync`, in reset between runs; `array`, in reset one cycle later than `sync`.

        The reset of `array` has its own register, since the array spreads over the whole FPGA. Nothing enters the array in the
        first cycle of a run.
        """
        m.domains.bus = bus = ClockDomain("bus")
        m.domains.sync = sync = ClockDomain("sync")
        m.domains.array = array = ClockDomain("array")
        bus.clk = sync.clk = array.clk = self.aclk
        self._running = Signal()
        m.d.comb += [bus.rst.eq(~self.aresetn), sync.rst.eq(~self._running)]
        m.d.bus += array.rst.eq(~self._running)

    def _weight_vectors(self, block, weights, weight_fifo):
        """Returns the connection of the weight loads to the weight FIFO, in a core with training through a transposer.

        The transposer has no stall. Credits reserve space in the FIFO for each tile when it is requested.
        """
        if not self.config.training:
            return [weight_fifo.write.eq(weights.vectors.write), weight_fifo.write_data.eq(weights.vectors.vector)]
        transposer = block(lambda: Transposer(n=self.config.n), "transposer")
        return [
            transposer.i_valid.eq(weights.vectors.write),
            transposer.i.eq(weights.vectors.vector),
            transposer.transpose.eq(weights.vectors.transpose),
            weight_fifo.write.eq(transposer.o_valid),
            weight_fifo.write_data.eq(transposer.o),
        ]

    def _connect_run(self, m, registers, run, reader, writer):
        """Connects commands, status and counters."""
        config = self.config
        m.d.comb += [
            self._running.eq(run.running),
            run.start.eq(registers.control_written & registers.written_data[0]),
            run.reset.eq(registers.control_written & registers.written_data[1]),
            run.acknowledge.eq(registers.interrupt_written & registers.written_data[1]),
            run.enable_written.eq(registers.interrupt_written),
            run.enable.eq(registers.written_data[0]),
            run.timeout.eq(registers.timeout),
            run.reader_quiet.eq(reader.quiet),
            run.writer_quiet.eq(writer.quiet),
            reader.flush.eq(~run.running),
            writer.flush.eq(~run.running),
            self.irq.eq(run.irq),
            registers.id.eq(IDENTIFIER),
            registers.version.eq(VERSION),
            registers.config.eq(
                REGISTER["config"].pack(
                    n=config.n, lead=config.lead, latency=config.latency, bus_bytes=config.bus_bytes, in_flight=config.in_flight
                )
            ),
            registers.unified_buffer_depth.eq(config.unified_buffer_depth),
            registers.accumulator_depth.eq(config.accumulator_depth),
            registers.bias_depth.eq(config.bias_depth),
            registers.weight_fifo_depth.eq(config.weight_fifo_depth),
            registers.features.eq(
                REGISTER["features"].pack(**{name: getattr(config, name) for name in REGISTER["features"].fields})
            ),
            registers.status.eq(REGISTER["status"].pack(running=run.active, done=run.done, fault=run.faulted, quiet=run.quiet)),
            registers.interrupt.eq(REGISTER["interrupt"].pack(enable=run.enabled, pending=run.pending)),
            registers.fault_cause.eq(run.fault_cause),
            registers.fault_pc.eq(run.fault_pc),
            registers.cycles.eq(run.cycles),
            registers.busy.eq(run.busy_cycles),
            registers.read_beats.eq(run.read_beats),
            registers.write_beats.eq(run.write_beats),
            *(register.eq(counter) for register, counter in zip(registers.stalls, run.stall_cycles)),
        ]

    def _connect_ring(self, m, ring, registers, run, dispatcher, decoder, port):
        """Connects the ring unit: links, operations, vector port, position in the ring and counters."""
        place = {name: registers.ring[first : first + width] for name, (first, width, _) in REGISTER["ring"].fields.items()}
        words = exact_log2(self.config.n) - 1  # of 32 bits in a vector
        connect(m, dispatcher.ring, ring.port)
        connect(m, flipped(self.s_axis_ring), ring.received)
        connect(m, ring.sent, flipped(self.m_axis_ring))
        m.d.comb += [
            ring.running.eq(run.running),
            ring.rank.eq(place["rank"]),
            ring.size.eq(place["size"]),
            ring.flush.eq(place["flush"]),
            port.ring.write.eq(ring.write),
            port.ring.read.eq(ring.read),
            port.ring.row.eq(ring.row),
            port.ring.vector.eq(ring.vector),
            ring.grant.eq(port.ring.grant),
            ring.operand.eq(port.ring.operand),
            decoder.ring_size.eq(place["size"]),
            run.ring_sends.eq(ring.sends),
            run.ring_takes.eq(ring.takes),
            registers.ring_depth.eq(self.config.ring_depth),
            registers.ring_sent.eq(run.ring_sent << words),
            registers.ring_received.eq(run.ring_received << words),
        ]
        # Vectors of an aborted run may still be on the links. RING is refused until a flush discards them.
        refused = Signal()
        abandoned = run.faulted | (run.reset & (run.active | ring.held | ring.offered))
        m.d.bus += refused.eq((refused | abandoned) & ~place["flush"])
        m.d.comb += registers.ring_state.eq(REGISTER["ring_state"].pack(held=ring.held, offered=ring.offered, refused=refused))
        is_place = (place["rank"] < place["size"]) & (place["size"] <= MOST_CORES)
        m.d.bus += decoder.ring_ready.eq(is_place & ~place["flush"] & ~(refused & (place["size"] != 1)))

    def _connect_faults(self, m, run, decoder, *units):
        """Connects the faults. The first fault ends the run. Priority in one cycle: loads, stores, ring, decoder."""
        m.submodules.fault_latch = latch = FaultLatch(sources=len(units) + 1)
        for unit, source in zip(units, latch.i):
            connect(m, unit.fault, source)
        m.d.comb += [
            latch.i[len(units)].valid.eq(decoder.fault),
            latch.i[len(units)].cause.eq(decoder.cause),
            latch.i[len(units)].pc.eq(decoder.pc),
        ]
        connect(m, latch.o, run.fault)

    def _connect_counters(self, m, run, reader, writer, dispatcher, matmul_unit, weight_fifo, activation, *rings):
        """Connects the stall reasons of the array, and the progress of the run."""
        m.submodules.stalls = stalls = StallReasons(config=self.config)
        m.d.comb += [
            stalls.waits_weights.eq(matmul_unit.waits_weights),
            stalls.waits_sums.eq(matmul_unit.waits_sums),
            stalls.idle.eq(matmul_unit.idle),
            stalls.shifting.eq(weight_fifo.shifting),
            stalls.waits.eq(dispatcher.waits),
            stalls.matmul_queued.eq(dispatcher.matmul_queued),
            stalls.at_end.eq(dispatcher.at_end),
            run.busy.eq(matmul_unit.issued),
            run.stall.eq(stalls.stall),
            run.read_beat.eq(reader.beat),
            run.write_beat.eq(writer.beat),
            run.progress.eq(
                functools.reduce(
                    operator.or_,
                    (ring.moves for ring in rings),
                    matmul_unit.issued
                    | matmul_unit.sums.write
                    | dispatcher.accepted
                    | activation.moves
                    | reader.moves
                    | writer.moves,
                )
            ),
        ]
