"""Operator fusion: merges nodes so that each remaining node is one stage.

The nodes are visited in topological order. Each node is fused into its producer if the producer has no other consumer. Scales and
shifts are folded into the weights and the bias of the producer, or of the consumers if no producer can take them. Activation
functions and pooling follow the sums of the same stage. Residual additions become further terms of the sum.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from ..functions.functions import NONE
from ..ir.errors import ModelError
from .composed import composed
from .merging import check_cancellation, drowns, folded_after, folded_sum, gentle, keeps_range, together
from .nodes import Affine, Copy, Linear, Unknown
from .scaled_taps import is_dense, is_inside, keep_range, scaled_part, spread
from .settled import by_factors, has_bias_rows, in_regions, is_infinite, per_position, same_everywhere, sum_of, with_bias_rows

__all__ = ["fuse", "in_order"]

_WRITTEN = "write it with functions of `tpu run --operators`, or cut the model before it"


def in_order(*ends):
    """Returns the nodes `ends` and all nodes on which they depend, in topological order."""
    order, entered, stack = {}, set(), [*reversed(ends)]
    while stack:
        node = stack[-1]
        if node not in entered:
            entered.add(node)
            stack += [source for source in node.sources if source not in order]
        else:
            order[stack.pop()] = None
    return list(order)


def fuse(*ends):
    """Returns nodes that are equivalent to the nodes `ends`, with as few nodes as possible in their graph."""
    order = in_order(*ends)
    fusion = _Fusion(order, ends)
    for node in order:
        fusion.take(node)
    results = tuple(map(fusion.settled, ends))
    _check_infinities(in_order(*results))
    check_cancellation(in_order(*results))
    return results


def _check_infinities(nodes):
    """Raises ModelError if a constant is not finite, except -inf in a mask that is added directly before a Softmax."""
    for node in nodes:
        if isinstance(node, Linear) and node.bias is not None:
            masks = np.isneginf(node.bias) if node.softmax else False
            if not (np.isfinite(node.bias) | masks).all():
                raise ModelError(
                    f"{node.title}: a constant in it is infinite; only a mask with -inf directly before a Softmax may be: use a "
                    "large number, such as -1e30"
                )


class _Fusion:
    def __init__(self, order, ends):
        self.made = {}  # original node -> fused node
        self.origin = {}  # fused Affine -> original node
        self.uses = Counter(source for node in order for source in node.sources)
        self.uses.update(ends)
        self.scaled = {node.source for node in order if isinstance(node, Affine)}
        self.steep = set()  # nodes into which no further scales may be folded

    def take(self, node):
        if isinstance(node, Unknown):
            fault = node.fault or node
            why = fault.why and fault.why()
            why = f": {why}" if why else f"; {_WRITTEN}"
            raise ModelError(f"{fault.title}: is not supported by itself, and it is not part of a function that is{why}")
        if isinstance(node, Linear) and node.softmax == "log":
            what = "LogSoftmax, which the host computes"
            raise ModelError(f"{node.title}: nothing may come after {what}; let the model end with it")
        if isinstance(node, Copy):
            result = replace(node, sources=tuple(map(self.settled, node.sources)))
        else:
            result = self._affine(node) if isinstance(node, Affine) else self._linear(node) if isinstance(node, Linear) else node
        self.made[node] = result
        self.uses[result] = self.uses[node]
        if isinstance(result, Affine):
            self.origin[result] = node

    def settled(self, node):
        """Returns the final form of a fused node. A scale and shift that no other node has absorbed becomes a Linear node."""
        result = self.made[node]
        if not isinstance(result, Affine):
            return result
        if same_everywhere(result.scale):
            made = with_bias_rows(result)
        elif made := by_factors(result):
            made = self._behind(result.source, made) or made
        else:
            made = in_regions(result)
        self.made[node], self.uses[made] = made, self.uses[result]
        return made

    def _alone(self, node):
        return isinstance(node, Linear) and self.uses[node] == 1

    # Scales and shifts

    def _affine(self, node):
        source = self.made[node.source]
        last_but_one = self.uses[node] == 1 and node in self.scaled
        if isinstance(source, Affine):
            scale, before = node.scale, source.shift
            whole = scale if source.scale is None else source.scale if scale is None else source.scale * scale
            steep = not all(one is None or gentle(one) for one in (scale, source.scale, whole))
            if steep or scale is not None and is_infinite(before):
                source = self.settled(self.origin[source])
                self.steep.add(source)
                return replace(node, source=source)
            self._bypass(source)
            folded = folded_after(source, scale, before, node.title)
            before = before if scale is None or before is None else before * scale
            node = replace(node, source=source.source, shift=sum_of(before, node.shift), scale=whole, folded=folded)
            source = node.source
        else:
            node = replace(node, source=source)
        # In a chain of scales and shifts, only the last node is folded into the weights.
        return node if last_but_one else self._into_sums(node, source)

    def _into_sums(self, node, source, product=False):
        """Folds a scale and shift, `node`, into the sums of its producer, `source`. Returns the changed producer, or `node` if
        folding is impossible. `product`: a matrix product takes the shift as its bias."""
        scale, shift = node.scale, node.shift
        if isinstance(source, Linear) and source.multiplies and not product:
            return self._into_product(node, source)
        if (
            self._alone(source)
            and source.open
            and same_everywhere(scale)
            and (same_everywhere(shift) or source.plain)
            and source not in self.steep
            and (source.pool is None or scale is None or (scale > 0).all())
            and (scale is None or not is_infinite(source.bias))
        ):
            bias = source.bias
            scale = None if scale is None else scale.reshape(-1)
            folded = folded_after(source, scale, bias, node.title)
            if scale is not None:
                parts = tuple(scaled_part(part, scale) for part in source.parts)
                if not gentle(scale) or not all(map(keep_range, source.parts, parts)):
                    return node
                source = replace(source, parts=parts)
                bias = None if bias is None else bias * scale
            if node.folded is not None:
                folded = folded_sum(folded, replace(node.folded, size=per_position(node.folded.size, source.shape)))
            shift = None if shift is None else per_position(shift, source.shape)
            return replace(source, bias=sum_of(bias, shift), folded=folded, value=node.value, view=node.view)
        return node

    def _into_product(self, node, source):
        """Folds a scalar factor, `node`, of a matrix product, `source`, into the sums of the product's first operand. Returns the
        changed product, or `node` if folding is impossible."""
        if not (self._alone(source) and source.plain):
            return node
        if node.shift is not None:
            return self._shifted_product(node, source)
        if np.unique(node.scale).size != 1 or source.bias is not None:
            return node
        (part,) = source.parts
        (tap,) = part.taps
        if not self._alone(tap.source):
            return node
        scale = node.scale.reshape(-1)[0].reshape(1, 1, 1)
        factor = replace(node, shape=tap.source.shape, source=tap.source, scale=scale, value=None, view=None)
        scaled = self._into_sums(factor, tap.source)
        if scaled is factor:
            return node
        scaled = replace(scaled, name=tap.source.name, title=tap.source.title)
        self.uses[scaled] = 1
        parts = (replace(part, taps=(replace(tap, source=scaled),)),)
        return replace(source, parts=parts, value=node.value, view=node.view)

    def _shifted_product(self, node, source):
        """Folds a shift, and a scalar factor before it, into a matrix product; see :meth:`_into_product`."""
        scaled = source
        if node.scale is not None:
            factor = replace(node, shift=None, folded=None)
            scaled = self._into_product(factor, source)
            if scaled is factor:
                return node
            self.uses[scaled] = 1
        return self._into_sums(replace(node, source=scaled, scale=None), scaled, product=True)

    def _bypass(self, affine):
        self.uses[affine] -= 1
        self.uses[affine.source] += self.uses[affine] > 0

    def _absorb(self, tap, affine, part, others, single):
        """Folds a scale and shift, `affine`, into one of the taps that read it.

        Returns `(tap, bias, folded)`, or None if folding is impossible: the tap on the source of `affine`, the constants to add
        to the bias, and the :class:`.FoldedConstants`. `part` is the region of the tap, `others` are its other taps, and
        `single` is True if the node has no other region.
        """
        scale, shift = affine.scale, affine.shift
        if tap.matrix is not None or is_infinite(shift):
            return None
        dense = is_dense(tap, part.size)
        if any(array is not None and array.shape[:2] != (1, 1) and not dense for array in (scale, shift)):
            return None
        if shift is not None and not (single and is_inside(tap, part.size)):
            return None
        if drowns(shift, 1.0 if scale is None else scale, others):
            return None

        def constants(array, weights):
            if array is None:
                return None
            if dense:
                return np.broadcast_to(array, affine.shape).reshape(-1) @ weights.reshape(-1, weights.shape[3])
            return (spread(np.broadcast_to(array, (1, 1, affine.shape[2])), tap) * weights).sum((0, 1, 2))

        weights = tap.weights
        if scale is not None:
            weights = spread(np.broadcast_to(scale, scale.shape[:2] + affine.shape[2:]), tap) * weights
            if not tap.identity(part.size) and not (gentle(scale) and keeps_range(tap.weights, weights)):
                return None
        folded = folded_after(affine, None, shift, affine.title)
        self._bypass(affine)
        return (
            replace(tap, source=affine.source, weights=weights, select=tap.select if scale is None else None),
            constants(shift, tap.weights),
            folded and replace(folded, size=constants(folded.size, np.abs(tap.weights))),
        )

    # Sums

    def _linear(self, node):
        bias, parts, folded = node.bias, [], None
        for part in node.parts:
            taps = []
            for number, tap in enumerate(part.taps):
                source, others = self.made[tap.source], part.taps[:number] + part.taps[number + 1 :]
                tap, single = replace(tap, source=source), len(node.parts) == 1
                absorbed = self._absorb(tap, source, part, others, single) if isinstance(source, Affine) else None
                if absorbed:
                    tap, more, more_folded = absorbed
                    bias, folded = sum_of(more, bias), folded_sum(folded, more_folded)
                elif isinstance(source, Affine):
                    tap = replace(tap, source=self.settled(self.origin[source]))
                if tap.matrix is not None:
                    tap = replace(tap, matrix=self.settled(tap.matrix))
                taps += self._through_concat(tap)
            parts.append(replace(part, taps=tuple(taps)))
        times = None if node.times is None else self.settled(node.times)
        node = replace(node, parts=tuple(parts), bias=bias, times=times, folded=folded)
        if len(parts) == 1 and len(taps) == 1 and taps[0].identity(parts[0].size) and bias is None:
            return self._behind(taps[0].source, node) or node
        return self._with_sums(node)

    def _through_concat(self, tap):
        """Replaces a tap on a Concat by taps on the inputs of the Concat. Returns a list of the new taps, or of the tap itself if
        it does not read a Concat.

        A Concat is a sum in which each channel comes from one input only. A residual addition is not replaced, because each of
        its consumers would have to repeat all of its products.
        """
        source = tap.source
        if tap.matrix is not None:
            return [tap]
        if not (isinstance(source, Linear) and source.plain and source.bias is None and tap.kernel == (1, 1) and tap.groups == 1):
            return [tap]
        inner = source.parts[0].taps
        if len(inner) < 2 or any(one.select is None or not one.in_place(source.shape[:2]) for one in inner):
            return [tap]
        if sum((one.select >= 0).astype(int) for one in inner).max() > 1:
            return [tap]
        taps = []
        for one in inner:
            weights = np.zeros((1, 1, one.source.shape[2], tap.weights.shape[3]))
            there = np.flatnonzero(one.select >= 0)
            np.add.at(weights[0, 0], one.select[there], tap.weights[0, 0, there])
            taps.append(replace(tap, source=one.source, weights=weights, select=None))
            self.uses[one.source] += 1
        self.uses[source] -= 1
        if self.uses[source] == 0:
            self.uses.subtract(one.source for one in inner)
        return taps

    def _behind(self, source, node):
        """Fuses a node that only processes results of `source` into the stage of `source`. Returns the stage."""
        commutes = node.times is not None and node.times.shape == node.shape
        if commutes and not self._takes_product(source) and self._takes_product(node.times):
            source, node = node.times, replace(node, times=source)
        if not self._alone(source) or source.softmax or source.times is not None:
            return None
        changes = {}
        if node.pool:
            if source.pool or len(source.parts) > 1 or not source.function.is_monotone or has_bias_rows(source):
                return None
            changes["pool"] = node.pool
        if node.function != NONE:
            changes["function"] = composed(source.function, node.function)
            if changes["function"] is None:
                return None
        if node.softmax:
            if not source.open or source.pool:
                return None
            changes["softmax"] = node.softmax
        if node.times is not None:
            if not source.plain or has_bias_rows(source):  # the core can only multiply plain sums
                return None
            changes["times"] = node.times
        return replace(source, **changes, shape=node.shape, value=node.value, view=node.view)

    def _takes_product(self, node):
        return self._alone(node) and node.plain and not has_bias_rows(node)

    def _with_sums(self, node):
        """Replaces those operands of an addition that are sums themselves by their terms, so that one stage computes all sums."""
        if len(node.parts) > 1:
            return node
        taps, bias, name, folded, before = [], node.bias, None, node.folded, node.parts[0].taps
        for number, tap in enumerate(before):
            source = tap.source
            if not (tap.diagonal(node.parts[0].size) and self._alone(source) and source.plain and not source.multiplies):
                taps.append(tap)
                continue
            scale = tap.weights.reshape(-1)
            scaled = scaled_part(source.parts[0], scale)
            start = None if source.bias is None else source.bias * scale
            lost = drowns(start, scaled.taps[0].weights, before[:number] + before[number + 1 :])
            if lost or not gentle(scale) or not keep_range(source.parts[0], scaled):
                taps.append(tap)
                continue
            taps += scaled.taps
            bias = sum_of(bias, start)
            folded = folded_sum(folded, folded_after(source, scale, source.bias, node.title))
            name = name or source.name
        taps = together(taps, node.parts[0].size, node.title)
        return replace(node, parts=(replace(node.parts[0], taps=tuple(taps)),), bias=bias, folded=folded, name=name or node.name)
