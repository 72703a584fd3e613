"""The host memory of a core, or of each core of a ring, for a sequence of runs, and the execution of the runs."""

from amaranth_tpu.hw.spec.isa import Region

from ..data.progress_lines import show
from ..golden.machines import MachineFault, ring_of
from ..rtl.host_memory import HOST_LATENCY
from ..rtl.native_cells import check_cells, with_native_cells
from ..rtl.runner import Simulation
from ..rtl.simulators import simulator_version
from ..rtl.verilog_cache import verilog_of
from ..rtl.wave_view import WaveView
from .driver import fault_of
from .rtl_run import run_batches
from .time_left import cycles_left

__all__ = ["HostImage", "core_simulation", "cycle_limit"]

_PAGE = 4096
#: The least size of the memory, as a power of two. A build of Verilator takes long and serves programs of all usual sizes. Icarus
#: builds in less than a second, but sets each word of the memory to zero before each run: a second for 16 MiB.
_LEAST_BITS = {"verilator": 24, "icarus": 20}


def _faster(cells="rtl", **_):
    native = "" if cells == "native" else 'the simulator verilator with `cells="native"`, with the same cycles; '
    return f'{native}`on="model"`, without cycles; fewer samples, or a smaller batch of a training step'


def cycle_limit(program):
    """Returns the number of cycles after which a run of a program is aborted: far more than slow host memory can cost."""
    return 64 * (program.cost.compute_cycles + program.cost.read_beats) + 1_000_000


def core_simulation(config, *, simulator, memory_bytes=1, cores=1, cells="rtl", waves=False, **options):
    """Prepares the simulation of a core, or of `cores` cores in a ring. `memory_bytes` is rounded up to a power of two, so that
    builds can be shared. `cells` is one of :data:`sim.rtl.native_cells.CELLS`. `options` are those of
    :meth:`sim.rtl.runner.Simulation.of_core` or `of_pod`."""
    check_cells(cells, simulator)
    simulator_version(simulator)  # report a missing simulator before generating the Verilog
    size, verilog = 1 << max(_LEAST_BITS[simulator], (memory_bytes - 1).bit_length()), verilog_of(config)
    if cells == "native":
        verilog = with_native_cells(verilog, config.cell_stages)
    if cores > 1:
        return Simulation.of_pod(verilog, config, cores, simulator=simulator, memory_bytes=size, **options)
    view = WaveView(verilog, config) if waves else None
    return Simulation.of_core(verilog, config, simulator=simulator, memory_bytes=size, waves=waves, view=view, **options)


class HostImage:
    """The contents of host memory, and the regions of each run of a program. Every region begins at a multiple of 4,096 bytes. In
    a ring, each core has its own memory, all with the same layout.

    Each run has its own INPUT and OUTPUT region. All runs share SCRATCH, and equal MODEL regions.

    Parameters
    ----------
    program : Program
    runs : sequence of (bytes, list of bytes)
        Contents of region MODEL, and contents of region INPUT on each core, for each run.
    scratch : list of bytes or None
        Contents of region SCRATCH on each core before the first run. SCRATCH is then read back after the runs. Default: zeros,
        which are not read back.

    Members
    -------
    batches : list of dict
        For each run, `{"regions": {name: [base, size]}}`.
    size : int
        Size of the memory in bytes.
    first_output : int
        Address from which the memory is read back after the runs.
    """

    def __init__(self, program, runs, scratch=None):
        self.program, self.cores, self.size, self._contents = program, program.cores, 0, {}
        shared = {model: self._add([model] * self.cores) for model in dict.fromkeys(model for model, _ in runs)}
        kept = None if scratch else self._reserve(program.sizes[Region.SCRATCH])
        regions = [{"MODEL": shared[model], "INPUT": self._add(inputs)} for model, inputs in runs]
        self.first_output = self.size
        kept = kept or self._add(scratch)
        for own in regions:
            own |= {"SCRATCH": kept, "OUTPUT": self._reserve(program.sizes[Region.OUTPUT])}
        self.batches = [{"regions": own} for own in regions]

    def _reserve(self, size):
        """Allocates a region of zeros. Returns its `[base, size]`."""
        place = [self.size, size]
        self.size += -(-size // _PAGE) * _PAGE
        return place

    def _add(self, contents):
        """Allocates a region with these contents, one for each core, all of the same size. Returns its `[base, size]`."""
        self._contents[self.size] = contents
        return self._reserve(len(contents[0]))

    def read(self, data, region, run=0):
        """Returns the contents of region OUTPUT or SCRATCH after a run, as a list with the bytes of each core. `data` has the
        bytes of each core that were read back."""
        base, size = self.batches[run]["regions"][region]
        return [bytes(memory[base - self.first_output :][:size]) for memory in data]

    @property
    def outputs(self):
        """Returns the address and the size of the memory that is read back after the runs."""
        return self.first_output, self.size - self.first_output

    @property
    def bytes(self):
        """Returns the contents from address 0 to the last region that is not zeros; for a ring, a list of the cores' contents."""
        images = self._images()
        return images if self.cores > 1 else images[0]

    def _images(self):
        images = [bytearray() for _ in range(self.cores)]
        for base, contents in self._contents.items():
            for image, content in zip(images, contents):
                image += bytes(base - len(image)) + content
        return [*map(bytes, images)]

    def simulate(self, *, simulator, memory=None, timeout=3600, progress=None, probes=(), **options):
        """Executes all runs on the RTL. `options` are those of :func:`.core_simulation`. Returns the result of
        :func:`.run_batches`, in which `output` has the bytes of each core."""
        program = self.program
        built = {"simulator": simulator, "memory_bytes": self.size, "cores": self.cores, **options}
        if probes:  # only of one core
            built["probes"] = probes
        try:
            raw = run_batches(
                core_simulation(program.config, **built),
                self.bytes,
                self.batches,
                outputs=self.outputs,
                timeout=timeout,
                progress=progress,
                on_cycles=cycles_left(program.predicted_cycles, len(self.batches), _faster(**options)),
                memory={"latency": HOST_LATENCY, **(memory or {})},
                cycle_limit=cycle_limit(program),
                probes=probes,
            )
        finally:
            show(None)
        return raw if self.cores > 1 else raw | {"output": [raw["output"]]}

    def execute(self, progress=None):
        """Executes all runs on the instruction-level model. Returns `(outputs, fault)`: the bytes of each core that are read
        back, and the fault that ended the execution, or None."""
        memories, fault = [bytearray(own.ljust(self.size, b"\0")) for own in self._images()], None
        for number, batch in enumerate(self.batches):
            places = {Region[name]: slice(base, base + size) for name, (base, size) in batch["regions"].items()}
            regions = [{region: memory[place] for region, place in places.items()} for memory in memories]
            try:
                ring_of(self.program.config, regions).run()
            except MachineFault as error:
                fault = fault_of(error, number)
            for memory, own in zip(memories, regions):
                for region, place in places.items():
                    memory[place] = own[region]
            if progress:
                progress(number + 1, len(self.batches))
            if fault:
                break
        return [memory[self.first_output :] for memory in memories], fault
