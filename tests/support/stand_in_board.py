"""An emulated board with frames on a pseudo-terminal, memory, registers, and the instruction-level model as its core."""

import contextlib
import os
import struct
import threading
import tty
import zlib

from amaranth_tpu.hw.spec.isa import Region
from amaranth_tpu.hw.spec.registers import IDENTIFIER, REGISTER, REGISTERS, VERSION
from amaranth_tpu.hw.spec.serial_protocol import (
    ANSWER,
    BRIDGE_IDENTIFIER,
    BRIDGE_VERSION,
    REGISTERS_BASE,
    REQUEST,
    Operation,
    Status,
)
from amaranth_tpu.sim.golden.machines import MachineFault, machine_of


class StandInBoard:
    """An emulated board that responds on the serial port `name` while its context is active.

    Parameters
    ----------
    config, memory : Config, int
        Configuration of the core, and bytes of the board's memory.
    damage : callable
        Function from a response's bytes and the number of earlier responses to the bytes that are sent.
    registers : dict
        Register values that differ from a correct core's, {name: value}.
    """

    def __init__(
        self,
        config,
        *,
        memory=1 << 18,
        damage=lambda answer, index: answer,
        words=256,
        identifier=BRIDGE_IDENTIFIER,
        version=BRIDGE_VERSION,
        registers=(),
    ):
        self.config, self.memory, self.damage = config, bytearray(memory), damage
        self.identity = struct.pack("<5I", identifier, version, words, memory, 80_000_000)
        self.values = {register.offset: register.reset for register in REGISTERS}
        sizes = config.n | config.lead << 8 | config.latency << 12 | config.bus_bytes << 16 | config.in_flight << 24
        depths = "unified_buffer_depth", "bias_depth", "accumulator_depth", "weight_fifo_depth"
        self.set(id=IDENTIFIER, version=VERSION, config=sizes, **{name: getattr(config, name) for name in depths})
        self.set(**dict(registers))
        self.answers = self.runs = 0

    def set(self, **values):
        for name, value in values.items():
            self.values[REGISTER[name].offset] = value

    def get(self, name):
        return self.values[REGISTER[name].offset]

    def __enter__(self):
        self._end, self._other = os.openpty()
        tty.setraw(self._other)
        self.name = os.ttyname(self._other)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_):
        os.close(self._other)
        self._thread.join(5)
        os.close(self._end)

    def _take(self, count):
        data = b""
        while len(data) < count:
            data += os.read(self._end, count - len(data))
        return data

    def _serve(self):
        with contextlib.suppress(OSError):  # the other end was closed
            while True:
                assert self._take(1)[0] == REQUEST
                head = self._take(8)
                operation, tag, count, address = struct.unpack("<BBHI", head)
                data = self._take(4 * count if operation == Operation.WRITE.value else 0)
                if zlib.crc32(head + data).to_bytes(4, "little") != self._take(4):
                    status, found = Status.CHECKSUM, b""
                else:
                    status, found = self._execute(Operation(operation), address, count, data)
                body = struct.pack("<BBH", status.value, tag, len(found) // 4) + found
                answer = bytes([ANSWER]) + body + zlib.crc32(body).to_bytes(4, "little")
                self.answers += 1
                os.write(self._end, self.damage(answer, self.answers - 1))

    def _execute(self, operation, address, count, data):
        if operation is Operation.IDENTIFY:
            return Status.OK, self.identity
        if address >= REGISTERS_BASE:
            offset = address - REGISTERS_BASE
            if operation is Operation.READ:
                return Status.OK, self.values[offset].to_bytes(4, "little")
            self._write_register(offset, int.from_bytes(data, "little"))
        elif address + 4 * count > len(self.memory):
            return Status.BUS_ERROR, b""
        elif operation is Operation.READ:
            return Status.OK, bytes(self.memory[address : address + 4 * count])
        else:
            self.memory[address : address + len(data)] = data
        return Status.OK, b""

    def _write_register(self, offset, value):
        if offset == REGISTER["control"].offset:
            if value & 2:
                self.set(status=0b1000)
            elif value & 1:
                self._run()
        else:
            self.values[offset] = value

    def _run(self):
        self.runs += 1
        spans = {
            region: (self.get(f"{region.name.lower()}_base_low"), self.get(f"{region.name.lower()}_size")) for region in Region
        }
        regions = {region: self.memory[base : base + size] for region, (base, size) in spans.items()}
        machine = machine_of(self.config, regions)
        self.set(cycles=1000, busy=400, stall_fetch=600)
        try:
            machine.run(self.get("pc"))
            self.set(status=0b1010)
        except MachineFault as fault:
            self.set(status=0b1100, fault_cause=fault.cause.value, fault_pc=fault.pc)
        for region, (base, size) in spans.items():
            self.memory[base : base + size] = regions[region]
