"""The host memory of a core, or of each core of a ring, for a sequence of runs."""

from amaranth_tpu.hw.spec.isa import Region

from ..golden.isa_model import MachineFault
from ..golden.isa_ring import MachineRing
from .driver import fault_of

__all__ = ["HostImage"]

_PAGE = 4096


class HostImage:
    """The contents of host memory, and the regions of each run. Every region begins at a multiple of 4,096 bytes. In a ring, each
    core has its own memory, all with the same layout.

    Members
    -------
    batches : list of dict
        For each run, `{"regions": {name: [base, size]}}`.
    size : int
        Size of the memory in bytes.
    first_output : int
        Address from which the memory is read back after the runs.
    """

    def __init__(self, cores=1):
        self.cores, self.size, self.first_output, self.batches, self._contents = cores, 0, 0, [], {}

    def reserve(self, size):
        """Allocates a region of zeros. Returns its `[base, size]`."""
        place = [self.size, size]
        self.size += -(-size // _PAGE) * _PAGE
        return place

    def add(self, *contents):
        """Allocates a region with these contents, one for each core, all of the same size. Returns its `[base, size]`."""
        self._contents[self.size] = contents
        return self.reserve(len(contents[0]))

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

    def execute(self, config, progress=None):
        """Executes all runs on the instruction-level model. Returns `(outputs, fault)`: the bytes of each core that are read
        back, and the fault that ended the execution, or None."""
        memories, fault = [bytearray(own.ljust(self.size, b"\0")) for own in self._images()], None
        for number, batch in enumerate(self.batches):
            places = {Region[name]: slice(base, base + size) for name, (base, size) in batch["regions"].items()}
            regions = [{region: memory[place] for region, place in places.items()} for memory in memories]
            try:
                MachineRing(config, regions).run()
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
