"""The FuseSoC generator `program`. It compiles a random network to the contents of the memory and a script for the host.

`memory.hex` holds region MODEL. `host.hex` holds the script, one step per line. The host identifies the core, sets the regions,
writes samples and starts a run. During the run it writes the next samples and reads some of them back. Then it waits for the
interrupt, checks the status, and compares every result with the golden model.
"""

import sys
import types
from pathlib import Path

sys.modules["amaranth_tpu"] = package = types.ModuleType("amaranth_tpu")
package.__path__ = [str(Path(__file__).resolve().parents[3])]  # this checkout, installed or not
del sys.path[0]  # this folder must not shadow modules of the standard library

try:
    import numpy as np
    from fusesoc.capi2.generator import Generator

    from amaranth_tpu.hw.config import Config
    from amaranth_tpu.sim.compiler.compile import compile_network
    from amaranth_tpu.sim.compiler.errors import CompileError
    from amaranth_tpu.sim.golden.arithmetic import bfloat16
    from amaranth_tpu.sim.golden.network import run_network
    from amaranth_tpu.sim.host.host_script import HostScript
    from amaranth_tpu.sim.host.inference import InferenceImage
    from amaranth_tpu.sim.ir.graph import dense_chain
    from amaranth_tpu.sim.rtl.memory_images import write_image
except ModuleNotFoundError as error:
    sys.exit(f"error: {sys.executable} has no package {error.name}; put the environment of amaranth-tpu first on PATH")

#: The SoC's address map.
CORE, MEMORY = 0x3000_0000, 0x4000_0000


def make_network(rng, widths):
    """Returns a network of dense layers of these widths, with RELU between them. Its weights are random, normally distributed,
    with a deviation that keeps the magnitude of the values."""
    layers = [
        (
            f"layer{index}",
            (rng.standard_normal((inputs, outputs)) / inputs**0.5).astype(bfloat16),
            rng.standard_normal(outputs, np.float32),
            "relu" if index + 2 < len(widths) else "none",
        )
        for index, (inputs, outputs) in enumerate(zip(widths, widths[1:]))
    ]
    return dense_chain("random", layers)


def fill(script, offset, data):
    """Adds steps that write `data` to the memory, and read back every eighth word. `data` is bytes, a multiple of 4."""
    for index, word in enumerate(np.frombuffer(data, "<u4")):
        script.store(MEMORY + offset + 4 * index, word)
        if index % 8 == 7:
            script.compare(MEMORY + offset + 4 * index, word)


def write_script(script, config, program, image, samples, expected):
    """Adds the steps of all runs, one run after the other."""

    def batch(run):
        return samples[run * program.batch : (run + 1) * program.batch]

    def region(run, name):
        return image.batches[run]["regions"][name][0]

    script.identify(config)
    fill(script, region(0, "INPUT"), program.pack_input(batch(0)))
    for run in range(len(image.batches)):
        script.start({name: (MEMORY + base, size) for name, (base, size) in image.batches[run]["regions"].items()})
        if run + 1 < len(image.batches):
            fill(script, region(run + 1, "INPUT"), program.pack_input(batch(run + 1)))
        script.finish()
        for place, word, comment in results(program, expected[run * program.batch : (run + 1) * program.batch]):
            script.compare(MEMORY + region(run, "OUTPUT") + place, word, f"run {run}, {comment}")
    script.end()


def results(program, expected):
    """Yields `(byte offset in region OUTPUT, bits, comment)` for each expected value of one batch."""
    for sample, values in enumerate(expected.view(np.uint32)):
        for column, value in enumerate(values):
            yield program.memory.output_offset(sample, column), value, f"sample {sample}, output {column}"


def main():
    generator = Generator()
    try:
        given = generator.config
        config = Config(**given["core"])
        rng = np.random.default_rng(given["seed"])
        network = make_network(rng, given["widths"])
        samples = rng.standard_normal((given["batch"] * given["runs"], network.input_size)).astype(bfloat16)
        program = compile_network(network, config, given["batch"])
    except KeyError as error:
        sys.exit(f"error: generator program needs the parameter {error}")
    except (ValueError, TypeError, CompileError) as error:
        sys.exit(f"error: {error}")
    image = InferenceImage(program, samples)
    script = HostScript(CORE)
    write_script(script, config, program, image, samples, run_network(network, samples))
    write_image("memory.hex", program.model, config.bus_bytes)
    Path("host.hex").write_text("\n".join(script.lines) + "\n")
    generator.filesets = {
        "images": {"files": [{name: {"copyto": name}} for name in ("memory.hex", "host.hex")], "file_type": "user"}
    }
    generator.targets = {"default": {"filesets": ["images"]}}
    generator.add_parameter("BUS_WIDTH", {"datatype": "int", "paramtype": "vlogparam", "default": config.bus_width})
    generator.add_parameter("STEPS", {"datatype": "int", "paramtype": "vlogparam", "default": len(script.lines)})
    generator.write()


if __name__ == "__main__":
    main()
