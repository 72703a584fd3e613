"""The instruction-level model of a ring of cores."""

from amaranth_tpu.hw.spec.isa import Fault

from .isa_model import Machine, MachineFault
from .ring import exchange

__all__ = ["MachineRing"]


class MachineRing:
    """Cores in a ring. Each executes its own program, and they exchange data at every RING instruction.

    After a fault, every RING of that core gives the fault RING until :meth:`flush`. So does every RING after `aresetn`; a new
    model starts in the state after reset and flush.

    RINGs *match* if mode and segment are the same in all cores. Matching RINGs complete after the least number of rounds that any
    core requests, and only in the cores that request this number. A core whose RING does not complete gives TIMEOUT in the model.
    In hardware it may give RING instead, and then the other cores may give RING or TIMEOUT too. A core that ends with HALT in
    hardware also does in the model, with the same bits.

    Attributes
    ----------
    machines : list of Machine
        The cores, in the order of the ring.
    faults : list of MachineFault or None
        Fault of each core in the last run; None for a core that reached HALT.

    Parameters
    ----------
    config : hw.config.Config
        Configuration of every core.
    regions : list of dict
        Host memory of each core, in the form that :class:`.Machine` takes.
    """

    def __init__(self, config, regions):
        size = len(regions)
        self.machines = [Machine(config, own, rank=rank, size=size) for rank, own in enumerate(regions)]
        self.faults = [None] * size

    def run(self, pc=0):
        """Executes all cores, from offset `pc` of their region MODEL up to HALT.

        Raises
        ------
        MachineFault
            With the first fault that does not come from waiting for another core. If all faults do, with the first one.
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
        """Empties the links of all cores. After a fault, or `aresetn` of any core, this must precede the next RING."""
        for machine in self.machines:
            machine.refused = False

    def _advance(self, rank, run, get):
        """Runs a core up to its next RING. Returns its :class:`.Exchange`, or None if the core has ended."""
        try:
            return run.send(get)
        except StopIteration:
            return None
        except MachineFault as fault:
            self.faults[rank], self.machines[rank].refused = fault, True
            return None

    def _exchange(self, waits):
        """Computes one exchange from the waiting :class:`.Exchange` of each core. Returns the resulting vectors of each core, or
        None for a core whose RING does not complete."""
        if not all(waits) or len({(wait.mode, wait.segment) for wait in waits}) > 1:
            return [None] * len(waits)
        rounds = min(wait.rounds for wait in waits)
        count = rounds * waits[0].segment
        got = exchange(waits[0].mode, [wait.vectors[..., :count, :] for wait in waits])
        return [vectors if wait.rounds == rounds else None for wait, vectors in zip(waits, got)]
