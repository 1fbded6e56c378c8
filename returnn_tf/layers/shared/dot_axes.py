"""The correspondence of axes of the two sources of `dot`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.dense.dot import DotAxes
from returnn_tf.tensor import Data, Dim

#: Since this version dims are equal only by declaration.
_STRICT_VERSION = 14


def prefer_axes(ctx: PlanContext, data: Data, desc: Any) -> list[int]:
    """Resolve a description; a dim matches an anonymous axis of its size if no axis is the dim itself."""
    if isinstance(desc, (list, tuple)):
        axes: list[int] = []
        for part in desc:
            axes += [i for i in prefer_axes(ctx, data, part) if i not in axes]
        return axes
    if isinstance(desc, Dim) and not ctx.has_axis(data, desc):
        found = [i for i, d in enumerate(data.dims) if d.agrees_with(desc)][:1]
        if found:
            return found
    return ctx.axes(data, desc)


def match_leftovers(
    ctx: PlanContext,
    datas: tuple[Data, Data],
    reds: tuple[list[int], list[int]],
    given_vars: tuple[Optional[list[int]], Optional[list[int]]],
) -> DotAxes:
    """Sort all axes into reduced, var and common ones.

    :param given_vars: axes that only one source has; None: all that the other source does not have
    :raises ConfigError: axes that don't match
    """
    a, b = datas
    red1, red2 = reds
    strict = ctx.behavior_version >= _STRICT_VERSION
    if red1 and red2:
        _check_reduced(ctx, a, b, red1, red2, strict)
    for index, (data, red, given) in enumerate(((a, red1, given_vars[0]), (b, red2, given_vars[1])), start=1):
        both = [i for i in given or () if i in red]
        if both:
            raise ctx.error(
                "the axis %s of source %d, %s, is both summed over and in var%d. Name it once."
                % (data.dims[both[0]], index, data, index)
            )
    rest1 = [i for i in range(a.rank) if i not in red1 and i not in (given_vars[0] or ())]
    rest2 = [i for i in range(b.rank) if i not in red2 and i not in (given_vars[1] or ())]
    pairs = _pair(a, b, rest1, rest2)
    left1 = [i for i in rest1 if i not in [p for p, _ in pairs]]
    left2 = [i for i in rest2 if i not in [q for _, q in pairs]]
    # Steps of a loop that only one source has: like its var axes, in front of them.
    loop1, loop2 = ([i for i in left if d.dims[i].is_loop] for left, d in ((left1, a), (left2, b)))
    left1, left2 = [i for i in left1 if i not in loop1], [i for i in left2 if i not in loop2]
    if not strict and None not in given_vars:
        pairs += _pair_by_size(a, b, left1, left2)
    for index, (data, left, given) in enumerate(((a, left1, given_vars[0]), (b, left2, given_vars[1]))):
        if left and given is not None:
            raise ctx.error(
                "axis %s of source %d, %s, is neither summed over nor in var%d, and source %d, %s, lacks it. "
                "Add it to var%d; if both have it, declare one Dim for both."
                % (data.dims[left[0]], index + 1, data, index + 1, 2 - index, (b, a)[index], index + 1)
            )
    pairs.sort()
    return DotAxes(
        red1,
        red2,
        loop1 + (left1 if given_vars[0] is None else given_vars[0]),
        loop2 + (left2 if given_vars[1] is None else given_vars[1]),
        [p for p, _ in pairs],
        [q for _, q in pairs],
    )


def _check_reduced(ctx: PlanContext, a: Data, b: Data, red1: list[int], red2: list[int], strict: bool) -> None:
    if len(red1) != len(red2):
        raise ctx.error(
            "red1 is %d axes of %s, but red2 is %d axes of %s. Name equally many." % (len(red1), a, len(red2), b)
        )
    for i, j in zip(red1, red2):
        d1, d2 = a.dims[i], b.dims[j]
        if d1.agrees_with(d2) or (d1.is_batch and d2.is_batch) or (not strict and d1.size == d2.size):
            continue
        raise ctx.error(
            "cannot sum over %s of the first source, %s, with %s of the second, %s: these are different dims. "
            "Name others in red1 and red2, or declare one Dim for both." % (d1, a, d2, b)
        )


def _identical(d: Dim, e: Dim) -> bool:
    return d is e or (d.is_batch and e.is_batch)


def _pair(a: Data, b: Data, rest1: Sequence[int], rest2: Sequence[int]) -> list[tuple[int, int]]:
    """Pair axes of equal dims, identical objects first."""
    pairs: list[tuple[int, int]] = []
    for same in (_identical, Dim.agrees_with):
        for i in rest1:
            if i in [p for p, _ in pairs]:
                continue
            free = (j for j in rest2 if j not in [q for _, q in pairs] and same(a.dims[i], b.dims[j]))
            found = next(free, None)
            if found is not None:
                pairs.append((i, found))
    return pairs


def _pair_by_size(a: Data, b: Data, left1: list[int], left2: list[int]) -> list[tuple[int, int]]:
    """Pair the rest by the old rule, and remove them from the lists.

    Static axes of the same size belong together, and dynamic axes in order.
    """
    pairs = []
    for i in list(left1):
        alike = (j for j in left2 if a.dims[i].size == b.dims[j].size and a.dims[i].is_batch == b.dims[j].is_batch)
        found = next(alike, None)
        if found is not None:
            pairs.append((i, found))
            left1.remove(i)
            left2.remove(found)
    return pairs
