"""The order of the jobs of a step with convolutions: jobs of samples by :func:`sim.compiler.training.pacing.by_samples`, and
updates between them."""

from .ordering import dependencies_of, is_update, last_layers_first, runs_of, weaves
from .pacing import array_cycles, by_samples, is_array_busier, results_cycles
from .pipeline import Pipeline
from .sums import MatrixSum
from .window_jobs import PART

__all__ = ["is_paced", "paced"]

_WORTH = 100  # cycles that the array waits for a job, from which updates precede it


def is_paced(sums):
    """Returns True if sums read windows, so that jobs are ordered by samples."""
    return any(product.has_lines for one in sums for product in getattr(one, "products", ()))


def paced(sums, writer, config):
    """Yields `(sum, job)` in the order in which the jobs of a step are emitted, once for each step of the job. The parameters are
    as in :func:`sim.compiler.training.ordering.woven`."""
    runs = runs_of(sums)
    dependencies, numbers = dependencies_of(sums), {id(one): number for number, one in enumerate(sums)}
    late = _late_runs(runs, sums, dependencies)
    updates = last_layers_first([run for run in runs if is_update(run)])
    main = [one for run in runs if not (is_update(run) or run in late) for one in run]
    beside = [run for run in updates if not _fills_array(run, config)]
    weaving = weaves(sums) and writer.divide(late + beside, main)
    own = [read | before for read, before in dependencies_of(main)]
    order = by_samples(main, writer.jobs, own, config, writer.emitter.sums.size)
    rest = sum(array_cycles(one, job, config) for one, job, _, _ in order if job)
    copies, pipeline, done, quiet = Pipeline(late), Pipeline(updates), set(), 0
    later = sum(_whole(run, config) for run in updates)

    def advanced(some, count):
        """Yields the next steps of a pipeline. Windows are complete before updates that read them are ready."""
        yield from some.advanced(count)
        if some is copies:
            left = {id(run[0]) for run, _ in copies.items[copies.begun :]} | {id(run[0]) for run in late}
            done.update(numbers[id(run[0])] for run, _ in copies.items if id(run[0]) not in left)

    for one, job, wait, is_last in order:
        if job and wait > _WORTH:
            some = copies if copies.begun < len(copies.items) else pipeline
            yield from advanced(some, some.during(wait, config))
        left = array_cycles(one, job, config) if job else 0
        yield one, job
        while writer.is_open(one, job):
            pipeline.beside(PART, rest + later, config)
            copies.beside(PART, rest, config)
            rest, left, quiet = rest - PART, left - PART, quiet - PART
            if quiet <= 0:
                yield from advanced(copies, copies.due_steps(config))
                yield from advanced(pipeline, pipeline.due_steps(config))
            yield one, job
        pipeline.beside(max(0, left), rest + later, config)
        copies.beside(max(0, left), rest, config)
        rest -= left
        quiet = max(0, quiet - left) + results_cycles(one, job, config) if job else 0
        if is_last:
            done.add(numbers[id(one)])
        if weaving:
            ready = [run for run in late if _is_ready(run, dependencies, numbers, done)]
            if ready and not (copies.items or pipeline.items):
                writer.emitter.begin_updates()
            copies.items[copies.begun : copies.begun] = [(run, job) for run in ready for job in writer.jobs(run)]
            late = [run for run in late if run not in ready]
            ready = [run for run in beside if _is_ready(run, dependencies, numbers, done) and _whole(run, config) <= rest]
            if ready and not (copies.items or pipeline.items):
                writer.emitter.begin_updates()
            pipeline.add([(run, writer.jobs(run)) for run in ready], config)
            later -= sum(_whole(run, config) for run in ready)
            beside = [run for run in beside if run not in ready]
            updates = [run for run in updates if run not in ready]
    copies.items += [(run, job) for run in late for job in writer.jobs(run)]
    yield from advanced(copies, len(copies.items) - copies.begun)
    are_sums = all(isinstance(one, MatrixSum) for run in runs for one in run if is_update(run))
    yield from _last(updates, weaving, are_sums, pipeline, writer, config)


def _last(updates, weaving, are_sums, pipeline, writer, config):
    """Yields the jobs of the updates that follow all jobs of samples. `are_sums` : no update has an exchange between cores."""
    heavy = [run for run in updates if _fills_array(run, config) and run[0].shape.rows >= 2 * config.n]
    if weaving and heavy and are_sums:
        yield from _together(heavy, [run for run in updates if run not in heavy], pipeline, writer, config)
        return
    if weaving:
        writer.emitter.join_sides()
    pipeline.add([(run, writer.jobs(run)) for run in updates], config)
    yield from _pieces(pipeline, writer)


def _together(heavy, others, pipeline, writer, config):
    """Yields the jobs of updates that fill the array, piece by piece. Between the pieces, yields those of other updates, which
    leave the array idle: those of a pipeline, and of `others`."""
    writer.begin_pieces(heavy)
    main = Pipeline(heavy)
    main.add([(run, writer.jobs(run)) for run in heavy], config)
    pipeline.add([(run, writer.jobs(run)) for run in others], config)
    jobs = [(one, job) for run, job in pipeline.items[pipeline.begun :] for one in run]
    whole = sum(array_cycles(one, job, config) + results_cycles(one, job, config) for one, job in jobs)
    total, due, beside = sum(_whole(run, config) for run in heavy), 0, _pieces(pipeline, writer)
    for item in _pieces(main, writer):
        begun = writer.worked
        yield item
        due += (writer.worked - begun) * whole / total
        while due > 0 and (other := next(beside, None)):
            begun, (one, job) = writer.worked, other
            yield one, job
            due -= writer.worked - begun + (0 if writer.is_within(one, job) else results_cycles(one, job, config))
    yield from beside


def _pieces(pipeline, writer):
    """Yields `(sum, job)` of all pieces of a pipeline's jobs."""
    for one, job in pipeline.advanced(len(pipeline.items) - pipeline.begun + pipeline.depth):
        yield one, job
        while writer.is_within(one, job):
            yield one, job


def _is_ready(run, dependencies, numbers, done):
    """Returns True if all sums that precede those of a run are complete."""
    mine = {numbers[id(one)] for one in run}
    return all(set.union(*dependencies[number]) <= done | mine for number in mine)


def _fills_array(run, config):
    """Returns True if the gradient of weights takes the array longer than their update takes the vector port. Beside other jobs,
    such an update would have less memory, but fill no gap of the array."""
    sums = [one for one in run if isinstance(one, MatrixSum)]
    return is_array_busier(sums, config) and any(one.kind == "matrix" for one in getattr(run[0], "products", ()))


def _whole(run, config):
    """Returns an estimate of the array's cycles for a run."""
    sums = [one for one in run if isinstance(one, MatrixSum)]
    return sum(array_cycles(one, (0, one.shape.rows, 0, one.shape.tiles), config) for one in sums)


def _late_runs(runs, sums, dependencies):
    """Returns the runs that gather windows for updates alone."""
    readers = {id(one): [] for one in sums}
    for one, (read, _) in zip(sums, dependencies):
        for number in read:
            readers[id(sums[number])].append(one)

    def is_late(one):
        gathers = isinstance(one, MatrixSum) and any(product.kind == "gather" for product in one.products[:1])
        return gathers and all(is_update([other]) for other in readers[id(one)])

    return [run for run in runs if is_late(run[0])]
