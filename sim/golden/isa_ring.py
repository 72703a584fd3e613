"""A ring of cores, instruction by instruction."""

from amaranth_tpu.hw.spec.isa import Fault

from .isa_model import Machine, MachineFault
from .ring import exchange

__all__ = ["MachineRing"]


class MachineRing:
    """Machines that run side by side, from one RING to the next.

    After a fault, all RINGs of a core give the fault RING until :meth:`flush`.

    RINGs *fit* if mode and segment are the same in all cores. They end after the fewest rounds that a core asks for, and only in
    cores with this number of rounds. A core whose RING does not end gives TIMEOUT here. In hardware it may give RING instead, and
    then the other cores may give RING or TIMEOUT too. A core that ends with HALT in hardware does so here, with the same bits.

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

    def flush(self):
        """Empties the links of all cores, which RINGs after a fault need."""
        for machine in self.machines:
            machine.refused = False

    def _advance(self, rank, run, get):
        """The next :class:`.Exchange` of a core; None when its run has ended."""
        try:
            return run.send(get)
        except StopIteration:
            return None
        except MachineFault as fault:
            self.faults[rank], self.machines[rank].refused = fault, True
            return None

    def _exchange(self, waits):
        """Returns the vectors that each core gets, or None for a core whose RING does not end."""
        if not all(waits) or len({(wait.mode, wait.segment) for wait in waits}) > 1:
            return [None] * len(waits)
        rounds = min(wait.rounds for wait in waits)
        count = rounds * waits[0].segment
        got = exchange(waits[0].mode, [wait.vectors[..., :count, :] for wait in waits])
        return [vectors if wait.rounds == rounds else None for wait, vectors in zip(waits, got)]
