"""cocotb bench of one core of a ring. The neighbours on the AXI4-Stream links, the memory and the AXI4-Lite master are
independent agents of cocotbext-axi.

Arguments
---------
image, output : files
    Memory before and after the program.
regions : dict
size : int
    Number of cores in the ring. The simulated core has rank 0.
links : list of dict
    For every segment that the core receives: `data` (hexadecimal), `user` (`tuser` of its beats), and `after`, the number of
    segments that the core must send before.
pause : float
    Probability of a stall per cycle, on each link.

Reports `frames` (the segments sent: data in hexadecimal, and `tuser`), `ring_sent` and `ring_received`. The bench fails if the
core withdraws or changes an offered beat before its handshake.
"""

import warnings
from pathlib import Path

import cocotb
from cocotb.triggers import ClockCycles, RisingEdge

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from cocotbext.axi import AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

from ..host.driver import Driver, flush_ring
from ..rtl.bench_side import arguments, report
from .bench_cocotbext import AxiLiteHost, agents_of, release


async def _watch(dut):
    waits = None
    while True:
        await RisingEdge(dut.aclk)
        offer = tuple(str(getattr(dut, f"m_axis_ring_{channel}").value) for channel in ("tvalid", "tdata", "tuser", "tlast"))
        assert waits is None or offer == waits, f"{waits} was offered and not taken, then {offer}"
        waits = offer if offer[0] == "1" and str(dut.m_axis_ring_tready.value) == "0" else None


async def _give(source, links, gone):
    for link in links:
        while len(gone) < link["after"]:
            await RisingEdge(source.clock)
        data = bytes.fromhex(link["data"])
        await source.send(AxiStreamFrame(data, tuser=[link["user"]] * len(data)))


async def _take(sink, gone):
    while True:
        frame = await sink.recv()
        gone.append([frame.tdata.hex(), frame.tuser])  # a number, since all beats of a frame have the same `tuser`


@cocotb.test()
async def ring_links(dut):
    job = arguments()
    image = Path(job["image"]).read_bytes()
    memory, master, reset = agents_of(dut, image)
    source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "s_axis_ring"), **reset)
    sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis_ring"), **reset)
    for agent in (source, sink):
        agent.log.setLevel("WARNING")
    await release(dut, (source, sink), job["pause"])
    driver, gone = Driver(AxiLiteHost(master, dut.irq)), []
    await driver.configure_regions(job["regions"])
    await driver.join_ring(0, job["size"])
    await flush_ring([driver], looks=1)
    tasks = [cocotb.start_soon(task) for task in (_watch(dut), _give(source, job["links"], gone), _take(sink, gone))]
    await driver.start()
    await driver.wait(100_000)
    await ClockCycles(dut.aclk, 20)
    for task in tasks:
        task.cancel()
    assert source.empty(), "not all was taken"
    Path(job["output"]).write_bytes(bytes(memory.read(0, len(image))))
    report({"frames": gone, **{name: await driver.read(name) for name in ("ring_sent", "ring_received")}})
