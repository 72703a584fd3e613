"""A ring of cores, instruction by instruction."""

from amaranth_tpu.hw.spec.isa import Fault

from .isa_model import Machine, MachineFault
from .ring import exchange

__all__ = ["MachineRing"]


class MachineRing:
    """Machines that run side by side, from one RING to the next.

    Attributes
    ----------
    machines : list of Machine
        In the order of the ring.
    faults : list of MachineFault or None
        How each of the last run ended.

    Parameters
    ----------
    config : hw.config.Config
        Of every core.
    regions : list of dict
        Host memory of each, as :class:`.Machine` takes it.
    """

    def __init__(self, config, regions):
        size = len(regions)
        self.machines = [Machine(config, own, rank=rank, size=size) for rank, own in enumerate(regions)]
        self.faults = [None] * size

    def run(self, pc=0):
        """Executes in every core, from offset `pc` of its region MODEL to HALT.

        Raises
        ------
        MachineFault
            The first that is not a wait for another core, if there is one.
        """
        self.faults = [None] * len(self.machines)
        runs = [machine.exchanges(pc) for machine in self.machines]
        gets, waits = [None] * len(runs), [None] * len(runs)
        while True:
            for rank, run in enumerate(runs):
                waits[rank] = self._advance(rank, run, gets[rank])
            if not any(waits):
                break
            gets = self._exchange(waits)
        for fault in sorted(filter(None, self.faults), key=lambda fault: fault.cause is Fault.TIMEOUT):
            raise fault

    def _advance(self, rank, run, get):
        """The next :class:`.Exchange` of a core; None when its run has ended."""
        try:
            return run.send(get)
        except StopIteration:
            return None
        except MachineFault as fault:
            self.faults[rank] = fault
            return None

    def _exchange(self, waits):
        """What each core gets; nobody gets anything if a core does not come, or comes with segments of its own."""
        kinds = {(wait.mode, wait.shape) if wait else None for wait in waits}
        if None in kinds or len(kinds) > 1:
            return [None] * len(waits)
        return exchange(waits[0].mode, [wait.vectors for wait in waits])
