"""Forms of the tensors of a graph, as matrices, and the rows of a sample."""

from ..errors import CompileError
from ..memory.matrices import Geometry

__all__ = ["NotMatrices", "forms_of", "geometries_of"]


class NotMatrices(CompileError):
    """The error about a step whose sums are not products of matrices with a row for each position. One line."""


def geometries_of(step, n, batch):
    """Returns {(height, width): :class:`Geometry`} of the tensors of samples. Samples are padded to whole tiles if products of
    two results need these."""
    sizes = {(one.height, one.width) for one in step.tensors.values() if one.samples}
    sizes |= {size for stage in step.stages if step.tensors[stage.output].samples for size in (stage.size, stage.result_size)}
    padded, found = set(), {}
    for stage in step.stages:
        for term in stage.terms if step.tensors[stage.output].samples else ():
            if step.tensors[term.weights].samples:
                names = {term.weights}
                if step.state:  # gradients read all of them as weights
                    names |= {stage.output} | ({term.source} if step.tensors[term.source].samples else set())
                padded |= {(step.tensors[name].height, step.tensors[name].width) for name in names}
    read = _read_rows(step, n)
    for height, width in sizes:
        positions = height * width
        period = max(positions, read.get((height, width), 0))
        period = -(-period // n) * n if (height, width) in padded else period
        found[height, width] = Geometry(n, batch, positions, period, width, n if step.state else 1)
    return found


def _read_rows(step, n):
    """Returns {(height, width): rows of a sample} that products of transposed tensors read or compute."""
    found = {}
    for stage in step.stages:
        for term in stage.terms:
            source = step.tensors[term.source]
            size, rows = stage.size, source.height * source.width * term.lanes
            if term.lanes and term.groups > 1:
                size = source.height, source.width
                lines = -(-source.height * source.width // term.lanes)
                rows = (lines - 1) * term.lanes + term.blocks[-1][0] + n
            found[size] = max(found.get(size, 0), rows)
    return found


def forms_of(step, views):
    """Returns {tensor without samples: key of `FORMS`}. All tensors of a parameter, such as its gradient and its optimizer state,
    have the same form. `views` is as in :class:`sim.compiler.passes.folding.Folded`."""
    forms = {whole: "positions" for whole, _ in views.values()}

    def give(name, form):
        if forms.setdefault(name, form) != form:
            raise NotMatrices(f"{name}: is read as {forms[name]} and as {form}, which can't be compiled")

    images = {stage.output: stage for stage in step.stages if stage.select and not step.tensors[stage.output].samples}
    made = {stage.output for stage in step.stages if not step.tensors[stage.output].samples}
    for stage in step.stages:
        if stage.output in made:
            continue
        tensor = step.tensors.get(stage.start)
        if tensor and not tensor.samples and stage.start not in step.constants:
            give(stage.start, "vector" if tensor.height * tensor.width == 1 else "positions")
        for term in stage.terms:
            if term.weights in images:
                image = images[term.weights]
                for name in (image.output, image.select.tensor, image.terms[0].source):
                    give(name, "turned")
            is_diagonal = step.is_diagonal(term, (*stage.size, step.tensors[stage.output].channels))
            is_number = term.weights in made and step.tensors[term.weights].shape == (1, 1, 1)
            if term.weights in step.parameters or is_number or is_diagonal and term.weights in made:
                give(term.weights, "vector" if is_diagonal or is_number else "turned")
    forms |= {name: "vector" for name, one in step.parameters.items() if one.is_average}
    for name in step.parameters:
        if name not in forms:
            raise NotMatrices(f"{name}: is not read by the network, which can't be compiled")
        forms |= dict.fromkeys((step.masters[name], step.gradients[name], *step.slots[name].values()), forms[name])
    forms |= {stage.start: forms[stage.output] for stage in step.stages if stage.ring and stage.output in forms}
    for stage in step.stages:
        if stage.output not in made or stage.output in forms:
            continue
        known = [forms.get(name) for name in (stage.start, stage.times, *(term.source for term in stage.terms))]
        form = next(filter(None, known), "vector" if any(step.tensors[term.weights].samples for term in stage.terms) else None)
        if summed := next(filter(None, (forms.get(step.summed(term)) for term in stage.terms)), None):
            form = "column" if summed == "turned" else "vector"
        if form is None:
            raise NotMatrices(f"{stage.output}: can't be compiled as matrix products")
        forms[stage.output] = form
        if stage.start in step.constants:
            forms[stage.start] = form
    return forms
