"""A model of a ring of cores, at instruction level."""

from amaranth_tpu.hw.spec.isa import Fault

from .isa_model import Machine, MachineFault
from .ring import exchange

__all__ = ["MachineRing"]


class MachineRing:
    """Machines that run in parallel, from one RING to the next.

    After a fault, all RINGs of a core give the fault RING until :meth:`flush`.

    RINGs *match* if mode and segment are the same in all cores. Matching RINGs complete after the least number of rounds that a
    core requests, and only in the cores that request this number. A core whose RING does not complete gives TIMEOUT here. In
    hardware it may give RING instead, and then the other cores may give RING or TIMEOUT too. A core that ends with HALT in
    hardware does so here, with the same bits.

    Attributes
    ----------
    machines : list of Machine
        In the order of the ring.
    faults : list of MachineFault or None
        Fault of each core in the last run, or None.

    Parameters
    ----------
    config : hw.config.Config
        Configuration of every core.
    regions : list of dict
        Host memory of each core, in the form of :class:`.Machine`.
    """

    def __init__(self, config, regions):
        size = len(regions)
        self.machines = [Machine(config, own, rank=rank, size=size) for rank, own in enumerate(regions)]
        self.faults = [None] * size

    def run(self, pc=0):
        """Executes all cores, from offset `pc` of their region MODEL to HALT.

        Raises
        ------
        MachineFault
            The first fault that is not a wait for another core, else the first fault.
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

    def flush(self):
        """Empties the links of all cores. RINGs after a fault need this."""
        for machine in self.machines:
            machine.refused = False

    def _advance(self, rank, run, get):
        """Returns the next :class:`.Exchange` of a core; None if its run has ended."""
        try:
            return run.send(get)
        except StopIteration:
            return None
        except MachineFault as fault:
            self.faults[rank], self.machines[rank].refused = fault, True
            return None

    def _exchange(self, waits):
        """Returns the vectors for each core, or None for a core whose RING does not complete."""
        if not all(waits) or len({(wait.mode, wait.segment) for wait in waits}) > 1:
            return [None] * len(waits)
        rounds = min(wait.rounds for wait in waits)
        count = rounds * waits[0].segment
        got = exchange(waits[0].mode, [wait.vectors[..., :count, :] for wait in waits])
        return [vectors if wait.rounds == rounds else None for wait, vectors in zip(waits, got)]
