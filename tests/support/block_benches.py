"""Benches of a single block, on its Verilog in Icarus Verilog or in Verilator."""

from amaranth_tpu.hw.verilog.export import component_to_verilog
from amaranth_tpu.sim.rtl.runner import Simulation
from seeds import seed


def run_block(component, name, simulator, testcase, **arguments):
    """Runs a testcase of the bench for the block `name` on the Verilog of `component`, and returns its result."""
    simulation = Simulation(simulator=simulator, verilog=component_to_verilog(component, name=name), top=name, quick=True)
    bench = f"amaranth_tpu.sim.benches.bench_{name}"
    return simulation.run(bench, testcase=testcase, seed=seed(), timeout=120, arguments=arguments)
