"""The order of the sums of a step. Sums that do not depend on each other alternate, so that the units overlap."""

from .sums import Expansion

__all__ = ["in_turns"]

_WINDOW = 32  # sums among which the next one is chosen
_LAG = 4  # sums from a sum to its reader, if possible


def _accesses(one):
    """Returns the matrices that a sum reads and writes, by address."""
    if isinstance(one, Expansion):
        reads, writes = [one.vector], [one.diagonal]
    else:
        reads = [matrix for product in one.products for matrix in (product.source, product.weights)]
        reads += [one.start, *(result.beside for result in one.results)]
        writes = [result.matrix for result in one.results]
    return ({(matrix.region, matrix.vector) for matrix in some if matrix} for some in (reads, writes))


def _dependencies(sums):
    """Returns, for each sum, the numbers of the sums whose results it reads, and of those that must precede it for another
    reason."""
    writers, readers, found = {}, {}, []
    for number, one in enumerate(sums):
        reads, writes = _accesses(one)
        read = {writers[place] for place in reads if place in writers}
        before = {writers[place] for place in writes if place in writers}
        before |= {reader for place in writes for reader in readers.get(place, ())}
        found.append((read, before))
        for place in reads:
            readers.setdefault(place, set()).add(number)
        for place in writes:
            writers[place] = number
            readers[place] = set()
    return found


def _table(one):
    if isinstance(one, Expansion):
        return None
    return next((result.function.key for result in one.results if result.function.is_table), None)


def in_turns(sums):
    """Returns the sums in an order in which each is, if possible, some sums after those whose results it reads. Sums with the
    same function by table follow each other."""
    dependencies, places, left, order, selected = _dependencies(sums), {}, list(range(len(sums))), [], None

    def wait(number):
        """Returns a key that is least for the sum that is best taken next."""
        last = max((places[other] for other in dependencies[number][0]), default=-_LAG)
        table = _table(sums[number])
        return table not in (None, selected), max(0, last + _LAG - len(order)), number

    while left:
        ready = [one for one in left[:_WINDOW] if all(places.keys() >= some for some in dependencies[one])]
        number = min(ready, key=wait)
        left.remove(number)
        places[number] = len(order)
        order.append(sums[number])
        selected = _table(sums[number]) or selected
    return order
