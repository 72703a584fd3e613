"""Proofs of the AXI4-Lite subordinate, of run control, and of the guard that refuses RING after an aborted run."""

from amaranth_tpu.hw.config import from_preset
from amaranth_tpu.hw.control.control_registers import ControlRegisters
from amaranth_tpu.hw.control.run_control import RunControl, State
from amaranth_tpu.hw.ring.ring_guard import RingGuard
from amaranth_tpu.hw.ring.ring_unit import RingUnit
from amaranth_tpu.hw.spec.isa import Fault, Region
from amaranth_tpu.hw.spec.registers import REGISTER, described, registers_of

from .bus import stays
from .induction import Proof, all_of, any_of, choose, count

__all__ = ["CONTROL"]


_CONFIG = from_preset("tiny")
_IDLE, _RUN = State.IDLE.value, State.RUN.value

#: Registers that a host writes, with the ports that hold them.
_STORED = {"timeout": "run__timeout", "pc": "pc"} | {
    f"{region.name.lower()}_{part}": f"regions__{region.value}__{part}"
    for region in Region
    for part in ("base_low", "base_high", "size")
}


class Subordinate(Proof):
    name, cycles = "AXI4-Lite subordinate", 2

    def make(self):
        return ControlRegisters(config=_CONFIG)

    def ghosts(self):
        """Returns the accesses without a response, and the addresses and data that wait: the host keeps them."""

        def answered(s, channel):
            return count([s[f"bus__{channel}valid"] & s[f"bus__{channel}ready"]])

        return {
            "open_writes": (4, 0, lambda s: s["open_writes"] + count([self.writes(s)]) - answered(s, "b")),
            "open_reads": (4, 0, lambda s: s["open_reads"] + count([self.reads(s)]) - answered(s, "r")),
            "aw_waited": (1, 0, lambda s: s["bus__awvalid"] & ~s["bus__awready"]),
            "ar_waited": (1, 0, lambda s: s["bus__arvalid"] & ~s["bus__arready"]),
            "w_waited": (1, 0, lambda s: s["bus__wvalid"] & ~s["bus__wready"]),
            "aw_address": (9, 0, lambda s: s["bus__awaddr"]),
            "ar_address": (9, 0, lambda s: s["bus__araddr"]),
        }

    def at(self, s, channel, name):
        return s[f"bus__{channel}addr"][2:9] == REGISTER[name].offset >> 2

    def writes(self, s):
        return s["bus__awvalid"] & s["bus__awready"]

    def reads(self, s):
        return s["bus__arvalid"] & s["bus__arready"]

    def answered(self, s, channel):
        return s[f"bus__{channel}valid"] & s[f"bus__{channel}ready"]

    def merged(self, s, name):
        """Returns a register after a write: bytes with a strobe are new."""
        old, new = s[_STORED[name]], s["bus__wdata"]
        return [choose(s["bus__wstrb"][byte], new[8 * byte : 8 * byte + 8], old[8 * byte : 8 * byte + 8]) for byte in range(4)]

    def assume(self, s):
        waits = [
            s[f"{channel}_waited"] >> (s[f"bus__{channel}valid"] & (s[f"bus__{channel}addr"] == s[f"{channel}_address"]))
            for channel in ("aw", "ar")
        ]
        return [*waits, s["w_waited"] >> s["bus__wvalid"]]

    def invariant(self, s):
        open_ = count([s["read"], s["bus__rvalid"]])
        return [
            s["open_writes"] == count([s["bus__bvalid"]]),
            s["open_reads"] == open_,
            open_ <= 1,
            s["bus__awready"] >> (s["aw_waited"] & s["w_waited"] & ~s["bus__bvalid"]),
        ]

    def claims(self, s, t, u):
        written, chosen = (
            self.writes(s),
            {name: self.writes(s) & self.at(s, "aw", name) for name in (*_STORED, "control", "interrupt")},
        )
        values = {name: t[register] for name, register in _STORED.items()}
        constants = {name: value for name, value in described(_CONFIG).items() if REGISTER[name] in registers_of(_CONFIG)}
        known = [self.at(s, "ar", register.name) for register in registers_of(_CONFIG) if register.access != "w1"]
        data = u["bus__rdata"]
        kept = [
            all_of(
                t[register][8 * byte : 8 * byte + 8] == choose(chosen[name], new, s[register][8 * byte : 8 * byte + 8])
                for byte, new in enumerate(self.merged(s, name))
            )
            for name, register in _STORED.items()
        ]
        commands = {"start": ("control", 0), "reset": ("control", 1), "acknowledge": ("interrupt", 1)}
        return {
            "a response to a write stays until it is accepted": stays(s, t, "bus__bvalid", "bus__bready"),
            "a response to a read stays until it is accepted, with its data": stays(
                s, t, "bus__rvalid", "bus__rready", "bus__rdata"
            ),
            # promise: axil-okay
            "every response is OKAY": (s["bus__bresp"] == 0) & (s["bus__rresp"] == 0),
            # promise: axil-write
            "address and data of a write are accepted together, if both are valid": (s["bus__awready"] == s["bus__wready"])
            & (s["bus__awready"] >> (s["bus__awvalid"] & s["bus__wvalid"])),
            # promise: axil-one, axil-write
            "one write at a time, each answered in the next cycle": (written >> ((s["open_writes"] == 0) & t["bus__bvalid"]))
            & (s["bus__bvalid"] >> (s["open_writes"] == 1)),
            # promise: axil-one, axil-read
            "one read at a time, each answered two cycles later": (self.reads(s) >> ((s["open_reads"] == 0) & u["bus__rvalid"]))
            & (s["bus__rvalid"] >> (s["open_reads"] == 1)),
            # promise: axil-write
            "a write that waits alone is accepted in the next cycle": (
                s["bus__awvalid"] & s["bus__wvalid"] & ~s["bus__awready"] & ~s["bus__bvalid"]
            )
            >> t["bus__awready"],
            # promise: axil-unmapped, axil-reads
            "a write changes the bytes with strobes of its register, and nothing else does": all_of(kept),
            "a read returns its register": all_of(
                (self.reads(s) & self.at(s, "ar", name)) >> (data == values[name]) for name in _STORED
            ),
            "a read returns the parameters of the core": all_of(
                (self.reads(s) & self.at(s, "ar", name)) >> (data == value) for name, value in constants.items()
            ),
            # promise: axil-unmapped
            "an unmapped address reads as 0": (self.reads(s) & ~any_of(known)) >> (data == 0),
            # promise: axil-reads, write-one
            "a command follows from a write of 1 to its bit, and from nothing else": all_of(
                t[f"run__{name}"] == (chosen[register] & s["bus__wstrb"][0] & s["bus__wdata"][bit])
                for name, (register, bit) in commands.items()
            ),
        }


class RunControls(Proof):
    name, cycles = "run control", 2

    def make(self):
        return RunControl(config=_CONFIG)

    def ghosts(self):
        return {
            "ran_before": (1, 0, lambda s: s["running"]),
            "halted_before": (1, 0, lambda s: s["halted"] & s["running"]),
            "active_before": (1, 0, lambda s: s["state"] != _IDLE),
            "silent_cycles": (32, 0, self.silent),
        }

    def invariant(self, s):
        (halted,) = s.found(r"halted\$\d+")
        return [
            s["silent"] == s["silent_cycles"],
            halted == s["halted_before"],
            s["state"] <= _RUN,
            s["running"] == (s["state"] == _RUN),
            s["stopped"] == ~s["running"],
            s["registers__faulted"] >> ((s["state"] == _IDLE) & ~s["registers__done"]),
            (s["state"] != _IDLE) >> ~s["registers__done"],
            s["ran_before"] == s["ran"],
            s["counting"] == s["active_before"],
        ]

    def claims(self, s, t, u):
        reset, state = s["registers__reset"], s["state"]
        ends = (state != _IDLE) & (t["state"] == _IDLE)
        fails = ends & ~reset & t["registers__faulted"]
        done = ends & ~reset & t["registers__done"]
        cause, pc = t["registers__fault_cause"], t["registers__fault_pc"]
        unit = s["running"] & s["fault__valid"]
        starts = (s["state"] == _IDLE) & (t["state"] != _IDLE)
        return {
            # promise: fault-ends
            "the units are in reset exactly outside a run": (s["running"] == (state == _RUN)) & (s["stopped"] == ~s["running"]),
            "the managers drain exactly outside a run": (s["reader__flush"] == s["stopped"])
            & (s["writer__flush"] == s["stopped"]),
            # promise: start-after-fault, reset-first
            "a run begins only with a start, no fault, and no reset": starts
            >> (s["registers__start"] & ~s["registers__faulted"] & ~reset),
            "a start without a fault begins a run": ((state == _IDLE) & s["registers__start"] & ~s["registers__faulted"] & ~reset)
            >> starts,
            # promise: start-when-quiet
            "the units run only after the bus was quiet": (~s["running"] & t["running"]) >> s["registers__quiet"],
            "between two runs the units are in reset for two cycles": (s["running"] & ~t["running"]) >> ~u["running"],
            "a run ends by HALT, a fault, a timeout or a reset": ends >> (reset | done | fails) & ~(done & fails),
            "it ends as DONE only after HALT": done >> (s["halted_before"] & ~s["fault__valid"] & ~s["expired"]),
            # promise: fault-ends
            "a fault ends the run at once, with its cause and instruction": (unit & ~reset)
            >> (fails & (cause == s["fault__cause"]) & (pc == s["fault__pc"])),
            "without a fault of a unit, the cause is TIMEOUT": (fails & ~unit)
            >> (s["expired"] & (cause == Fault.TIMEOUT.value) & (pc == s["present_pc"])),
            "cause and instruction stay until a reset": (s["registers__faulted"] & ~reset)
            >> (t["registers__faulted"] & (cause == s["registers__fault_cause"]) & (pc == s["registers__fault_pc"])),
            # promise: fault-ends
            "an end sets `pending`, and only a reset or a host clears it": ((done | fails) >> t["registers__pending"])
            & ((s["registers__pending"] & ~s["registers__acknowledge"] & ~reset) >> t["registers__pending"]),
            "nothing else sets `pending`": (~s["registers__pending"] & t["registers__pending"]) >> (done | fails),
            "`irq` exactly if an enabled interrupt is pending": s["irq"] == (s["registers__pending"] & s["registers__enabled"]),
            # promise: reset-first
            "a reset ends the run and clears its status": reset
            >> (
                (t["state"] == _IDLE)
                & ~t["registers__done"]
                & ~t["registers__faulted"]
                & ~t["registers__pending"]
                & (cause == Fault.NONE.value)
                & (pc == 0)
            ),
            # promise: timeout
            "a run expires only after `timeout` cycles without progress": t["expired"]
            >> ((s["silent_cycles"] >= s["registers__timeout"]) & (state != _IDLE)),
            # promise: timeout
            "after `timeout` cycles without progress it expires": (
                (state != _IDLE) & (s["silent_cycles"] >= s["registers__timeout"]) & (s["silent_cycles"] > 0)
            )
            >> t["expired"],
            "`cycles` counts the cycles of a run": choose(
                (state == _IDLE) & s["registers__start"] & ~s["registers__faulted"] & ~reset,
                0,
                (s["registers__cycles"] + count([s["active_before"]]))[0:32],
            )
            == t["registers__cycles"],
        }

    def silent(self, s):
        kept = (s["state"] != _IDLE) & ~s["moved"]
        return choose(kept, (s["silent_cycles"] + 1)[0:32], 0)


class Guard(Proof):
    name = "ring guard"

    def make(self):
        return RingGuard()

    def ghosts(self):
        """Returns the flag that vectors of an aborted run may be on the links."""
        return {"unsafe": (1, 1, lambda s: (s["unsafe"] | self.aborts(s)) & ~s["position__flush"])}

    def aborts(self, s):
        left = s["run__active"] | s["links__held"] | s["links__offered"]
        return s["run__faulted"] | (s["run__reset"] & left)

    def invariant(self, s):
        return [s["refused"] == s["unsafe"]]

    def claims(self, s, t):
        alone = s["position__size"] == 1
        valid = (s["position__rank"] < s["position__size"]) & (s["position__size"] <= 8)
        return {
            # promise: ring-refused
            "after `aresetn` or an aborted run, RING is refused until a flush, and only then": s["refused"] == s["unsafe"],
            # promise: ring-refused
            "a core in a ring executes RING only if it is not refused": t["check__ready"] >> (alone | ~s["refused"]),
            "RING executes only with a valid position, and never during a flush": t["check__ready"]
            >> (valid & ~s["position__flush"]),
            # promise: ring-refused
            "a core alone needs no flush": (alone & valid & ~s["position__flush"]) >> t["check__ready"],
        }


class RingUnits(Proof):
    """The proof that a ring unit keeps its links in order when a run ends, as after a fault."""

    name = "ring unit outside a run"

    def make(self):
        return RingUnit(config=from_preset("tiny", n=2, ring=True, ring_depth=4))

    def invariant(self, s):
        return [s["advance"] == ~s["spared"], s["may_begin"] >> s["active"]]

    def claims(self, s, t):
        outside, sent = ~s["active"], ("sent__tvalid", "sent__tready", "sent__tdata", "sent__tuser", "sent__tlast")
        return {
            # promise: ring-valid
            "an offered vector stays, even if the run ends": stays(s, t, *sent),
            "outside a run no other vector is offered": (outside & t["sent__tvalid"]) >> (s["sent__tvalid"] & ~s["sent__tready"]),
            "outside a run the unified buffer is not accessed": outside >> ~(t["buffer__read"] | t["buffer__write"]),
            "outside a run no operation is taken, and none ends or fails": outside
            >> ~(s["port__op__ready"] | t["port__done"] | t["fault__valid"] | t["busy"]),
            # promise: ring-between-runs
            "received vectors are kept for the next run": outside >> ~t["events__takes"],
            "outside a run nothing counts as progress but a vector that leaves": (outside & t["events__moves"])
            >> (s["sent__tvalid"] & s["sent__tready"] | s["buffer__read"] | s["buffer__write"]),
        }


#: Proofs of the blocks between the registers and the units.
CONTROL = [Subordinate(), RunControls(), Guard(), RingUnits()]
