# amaranth: UnusedElaboratable=no
"""Tests that the inductive proofs of the blocks hold, and that each fails on blocks with a planted error."""

import pytest

from amaranth_tpu.hw.activation import update_unit
from amaranth_tpu.hw.array import buffer_port, transposer, weight_fifo
from amaranth_tpu.hw.bus import (
    axi_reader,
    axi_writer,
    burst_splitter,
    read_unit,
    store_unit,
    transaction_id,
    transposed_loads,
    weight_credits,
)
from amaranth_tpu.hw.control import control_registers, dispatcher, operation_queue, run_control, scoreboard
from amaranth_tpu.hw.lib import short_fifo, skid_buffer
from amaranth_tpu.hw.ring import link_fifo, ring_guard, ring_unit
from amaranth_tpu.hw.softmax import divider_bank, group_fifo, sum_control
from amaranth_tpu.sim.proofs.inductions import INDUCTIONS
from mutants import plant

#: Name of a proof, module, right and wrong text. The proof must fail.
MUTANTS = [
    ("short FIFO of 4", short_fifo, "newest.eq(newest + 1)", "newest.eq(newest + 2)"),
    ("short FIFO of 4", short_fifo, "self.w_rdy.eq(~held[-1])", "self.w_rdy.eq(~held[-2])"),
    ("short FIFO of 4", short_fifo, "held.eq(held >> 1)", "held.eq(0)"),
    ("operation queue of 4", operation_queue, "Mux(held[i], slots[i], self.w_slot)", "self.w_slot"),
    ("operation queue of 4", operation_queue, "Mux(held[i + 1], slots[i + 1], self.w_slot)", "slots[i + 1]"),
    ("skid buffer of 2", skid_buffer, "waiting.eq(waiting | self.i.valid)", "waiting.eq(self.i.valid)"),
    ("skid buffer of 2", skid_buffer, "with m.If(~waiting):", "with m.If(self.i.valid):"),
    ("link FIFO of 4", link_fifo, "fetches.eq(held & ~(fetched & spared))", "fetches.eq(held)"),
    ("link FIFO of 4", link_fifo, "level_next != self.depth", "level != self.depth"),
    ("link FIFO of 4", link_fifo, "spared.eq(~free & (spared | comes))", "spared.eq(~free & comes)"),
    ("group FIFO of 4", group_fifo, "stored.eq(_moved(stored, self.write, self.read))", "stored.eq(stored + self.write)"),
    ("group FIFO of 4", group_fifo, "with m.If(self.advance):", "with m.If(1):"),
    ("group FIFO of 4", group_fifo, "taken != self.depth", "taken != self.depth - 1"),
    ("weight credits, 4 tiles of 16 beats", weight_credits, "room >= 3 * MAX_BURST", "room >= 2 * MAX_BURST"),
    ("weight credits, 4 tiles of 16 beats", weight_credits, "& (taken == 0) &", "&"),
    ("AXI read manager, 4 bursts", axi_reader, "with m.If(bus.arready):", "with m.If(1):"),
    ("AXI read manager, 4 bursts", axi_reader, "(~bus.arvalid | bus.arready) & room & ~draining", "room & ~draining"),
    ("AXI read manager, 4 bursts", axi_reader, "owners.level == self.outstanding - 1", "owners.level == self.outstanding"),
    ("AXI read manager, 4 bursts", axi_reader, "& (bus.rid == self.own.id) & self.own.settled", "& self.own.settled"),
    ("AXI read manager, 4 bursts", axi_reader, "& ~draining & ~control.flush", "& ~control.flush"),
    ("AXI read manager, 4 bursts", axi_reader, "present > most - MAX_BURST + 1, present", "present > most + 1, present"),
    ("AXI read manager, 4 bursts", axi_reader, "last.eq(answer & bus.rlast)", "last.eq(answer)"),
    ("AXI write manager, 4 bursts", axi_writer, "with m.If(~bus.wvalid | bus.wready):", "with m.If(1):"),
    ("AXI write manager, 4 bursts", axi_writer, "last.eq(left == 1)", "last.eq(left <= 2)"),
    ("AXI write manager, 4 bursts", axi_writer, "(~draining).replicate", "(~control.flush).replicate"),
    ("AXI write manager, 4 bursts", axi_writer, "~active & (~bus.awvalid | bus.awready) & ~full", "~active & ~full"),
    ("AXI write manager, 4 bursts", axi_writer, "pending == self.outstanding)", "pending == self.outstanding + 1)"),
    ("AXI write manager, 4 bursts", axi_writer, "control.quiet & self.own.settled", "self.own.settled"),
    ("transaction ID", transaction_id, "((step == 2) & self.asked)", "(step == 2)"),
    ("transaction ID", transaction_id, "~step[0] & (~step[1] | next_.data)", "~step[1] | next_.data"),
    ("transaction ID", transaction_id, "((step == 1) & last.data)", "(step == 1)"),
    ("weight FIFO, 2 tiles of 2 vectors", weight_fifo, 'self.freed.eq(moving["last"])', 'self.freed.eq(moving["last"] | last)'),
    ("weight FIFO, 2 tiles of 2 vectors", weight_fifo, "(last | (~under_way & ~first))", "1"),
    ("weight FIFO, 2 tiles of 2 vectors", weight_fifo, "count + tile_written - first", "count + complete - first"),
    ("transposer of 2 x 2", transposer, "diagonal.eq(diagonal ^ transpose)", "diagonal.eq(transpose)"),
    ("transposer of 2 x 2", transposer, "address(stored_number, column)", "address(stored_number ^ self.i_valid, column)"),
    ("transposer of 2 x 2", transposer, "with m.Elif(read_number == n - 1):", "with m.Elif(~self.i_valid):"),
    ("burst splitter, blocks of 16", burst_splitter, "end + 1", "end"),
    ("burst splitter, blocks of 16", burst_splitter, "last.eq(behind == 1)", "last.eq(behind == 2)"),
    ("AXI4-Lite subordinate", control_registers, "with m.If(bus.bready):", "with m.If(1):"),
    ("AXI4-Lite subordinate", control_registers, "& ~write & ~bus.bvalid", "& ~write"),
    ("AXI4-Lite subordinate", control_registers, "~read & ~bus.rvalid", "~bus.rvalid"),
    ("AXI4-Lite subordinate", control_registers, 'chosen("control") & bus.wstrb[0]', 'chosen("control")'),
    ("AXI4-Lite subordinate", control_registers, 'chosen("interrupt") & bus.wstrb[0]', 'chosen("interrupt")'),
    ("run control", run_control, "registers.quiet & ~ran, State.RUN", "~ran, State.RUN"),
    ("run control", run_control, "with m.If(registers.start & ~registers.faulted):", "with m.If(registers.start):"),
    ("run control", run_control, "with m.If(self.running & self.fault.valid):", "with m.If(self.fault.valid & 0):"),
    ("run control", run_control, "silent >= registers.timeout", "silent > registers.timeout"),
    (
        "dispatcher and scoreboard",
        dispatcher,
        "(a.writes & (b.reads | b.writes)) | (a.reads & b.writes)",
        "a.writes & (b.reads | b.writes)",
    ),
    ("divider bank of 3", divider_bank, "end.eq(end.rotate_left(1))", "end.eq(end.rotate_right(1))"),
    ("divider bank of 3", divider_bank, "places = self.count + 2", "places = self.count + 3"),
    ("divider bank of 3", divider_bank, "waiting.o.ready.eq((begin & ~used).any())", "waiting.o.ready.eq(1)"),
    ("store unit, vectors of 2 beats", store_unit, "stale.eq(come & ~waits & leaves)", "stale.eq(come & leaves)"),
    ("store unit, vectors of 2 beats", store_unit, "self.prefetch = 3 + latency", "self.prefetch = 4 + latency"),
    ("store unit, vectors of 2 beats", store_unit, "final.eq(rows_left == 2)", "final.eq(rows_left == 1)"),
    ("read unit", read_unit, "head.vectors == 2", "head.vectors == 1"),
    ("read unit", read_unit, "op.valid & queue.w_rdy)", "op.valid)"),
    ("read unit", read_unit, "head.row + step", "head.row + 2"),
    ("buffer port, latency 2", buffer_port, "store.grant.eq(free & ~asked)", "store.grant.eq(free)"),
    ("buffer port, latency 2", buffer_port, "loading | results.write", "results.write"),
    ("buffer port with a ring, latency 1", buffer_port, "ring.write & ~(ring.read | asked)", "ring.write & ~asked"),
    ("sum control of softmax", sum_control, "pause.eq(scale.left)", "pause.eq(scale.left[1:])"),
    ("sum control of softmax", sum_control, "moved.valid.eq(held.valid & (steps == 0))", "moved.valid.eq(held.valid)"),
    ("sum control of softmax", sum_control, "(~keeps | self.may_keep)", "(keeps | self.may_keep)"),
    ("transposed loads", transposed_loads, "(open_ == 0)", "(open_ <= 1)"),
    ("transposed loads", transposed_loads, "load.op.ready & port.op.p.transpose)", "load.op.ready)"),
    ("update unit, 1 of 2 lanes, latencies 1 and 1", update_unit, "row_ends & (~running", "(~running"),
    ("update unit, 1 of 2 lanes, latencies 1 and 1", update_unit, "end.valid & end.last", "end.last"),
    ("dispatcher and scoreboard", dispatcher, "a.first <= b.last, b.first <= a.last", "a.first < b.last, b.first <= a.last"),
    ("dispatcher and scoreboard", dispatcher, "with m.Elif(judging & conflict.any())", "with m.Elif(judging & conflict.all())"),
    ("dispatcher and scoreboard", dispatcher, "~reading & ~comparing)", "~reading)"),
    ("dispatcher and scoreboard", dispatcher, "ready = ~board.blocked.bit_select(queue.r_slot, 1)", "ready = 1"),
    ("dispatcher and scoreboard", dispatcher, "& clear & ~queue.r_rdy", "& ~queue.r_rdy"),
    ("dispatcher and scoreboard", dispatcher, "(alone & any_late))", "((alone | is_sync) & any_late))"),
    ("dispatcher and scoreboard", dispatcher, "board.waits_for.eq(waits_for & board.occupied)", "board.waits_for.eq(waits_for)"),
    ("dispatcher and scoreboard", scoreboard, "self.blocked[s].eq(~self.clear)", "self.blocked[s].eq(0)"),
    ("dispatcher and scoreboard", scoreboard, "self.waits_for & ~self.ended", "self.waits_for"),
    ("ring unit outside a run", ring_unit, "still = to_send & ~self.sent.tready", "still = 0"),
    ("ring unit outside a run", ring_unit, "misplaced & active", "misplaced"),
    ("ring unit outside a run", ring_unit, "leaves & self.running", "leaves"),
    ("ring guard", ring_guard, '"refused": Out(1, init=1)', '"refused": Out(1)'),
    ("ring guard", ring_guard, "abandoned = run.faulted | ", "abandoned = "),
    ("ring guard", ring_guard, "is_valid & ~position.flush & ", "is_valid & "),
]


#: One size of the blocks with few other tests. The other proofs are slow.
FAST = {
    "short FIFO of 4",
    "operation queue of 4",
    "skid buffer of 2",
    "link FIFO of 4",
    "weight credits, 4 tiles of 16 beats",
    "AXI read manager, 4 bursts",
    "AXI write manager, 4 bursts",
    "AXI4-Lite subordinate",
    "run control",
    "ring guard",
    "transaction ID",
    "weight FIFO, 2 tiles of 2 vectors",
    "transposer of 2 x 2",
}
CASES = [pytest.param(one, marks=[] if one.name in FAST else [pytest.mark.slow], id=one.name) for one in INDUCTIONS]


@pytest.mark.parametrize("proof", CASES)
def test_block_is_proven(proof):
    assert proof.run().failed == ()


@pytest.mark.slow
@pytest.mark.parametrize("name, module, right, wrong", MUTANTS)
def test_planted_error_is_refuted(monkeypatch, name, module, right, wrong):
    plant(monkeypatch, module, right, wrong)
    (proof,) = (proof for proof in INDUCTIONS if proof.name == name)
    assert proof.run().failed


def test_every_proof_has_two_mutants():
    """The proofs of one block at several sizes share its mutants."""
    kinds = {type(proof) for proof in INDUCTIONS}
    kind = {proof.name: type(proof) for proof in INDUCTIONS}
    assert FAST <= kind.keys()
    few = [one.__name__ for one in kinds if sum(kind[name] is one for name, *_ in MUTANTS) < 2]
    assert not few
