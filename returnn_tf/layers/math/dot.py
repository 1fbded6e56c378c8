"""`dot`: the product of two sources, summed over some axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from returnn_tf.config.options import option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axes
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.attention_parts import attended, note_product
from returnn_tf.loops.aux_values import PER_SEQUENCE, PerSequence
from returnn_tf.ops.dense.dot import DotAxes, axis_letters, contract, gather_rows
from returnn_tf.ops.dense.in_beam import product_in_beam
from returnn_tf.ops.dense.labelled_attention import Factor
from returnn_tf.ops.frames.reduce import fill_masked
from returnn_tf.ops.mixed_precision import full, reduced
from returnn_tf.tensor import Data, Dim
from returnn_tf.tensor.match import pair_same
from returnn_tf.util.lazy_tf import tf

_AUTO: Any = "auto"
#: Defaults before behavior version 3: (red1, red2, var1, var2).
_OLD_DEFAULTS = (-1, -2, -2, -1)


@dataclasses.dataclass(frozen=True, eq=False)
class DotPlan(LayerPlan):
    """The plan of `DotLayer`.

    :param sparse: index of the source that acts as one-hot vectors; None: neither does
    :param axes: which axes of the sources are summed over, common, and of one source only
    :param adds_axis: whether the output has an axis of size 1 at its end
    """

    sparse: Optional[int]
    axes: DotAxes
    adds_axis: bool


@register_layer("dot")
class DotLayer(Planned[DotPlan]):
    """``y[common, var1, var2] = sum over red of x1[common, var1, red] * x2[common, red, var2]``.

    The axes of both sources are those that are summed over (red1, red2, pairwise in this order), those that only one
    has (var1, var2), and all others, which both must have. The output has the common axes in the order of the first
    source, then var1, then var2. The time axis is that of the first source that has it in the output. The feature axis
    is the last axis of features, else the last static one, else the last one besides the time. Frames after the end of
    a sequence count as 0 where a dynamic axis is summed over. A sparse source acts as one-hot vectors: ``reduce`` with
    its sparse dim looks up rows of the other source.

    No parameters. Lengths: unchanged for the remaining axes.

    Example::

        network = {
            "query": {"class": "linear", "activation": None, "n_out": 3, "from": "data"},
            "last": {"class": "reduce", "mode": "max", "axis": "T", "from": "query"},
            "output": {"class": "dot", "red1": "F", "red2": "F", "var1": "T", "var2": None, "from": ["query", "last"]}}
    """

    red1: Axes = option(_AUTO, help="axes of the first source to sum over")
    red2: Axes = option(_AUTO, help="axes of the second source to sum over, in the order of red1")
    reduce: Optional[Axes] = option(None, help="axes to sum over, of both sources; instead of red1 and red2")
    var1: Optional[Axes] = option(_AUTO, help="axes of the first source only; default: inferred from the dims")
    var2: Optional[Axes] = option(_AUTO, help="axes of the second source only; default: inferred from the dims")
    add_var2_if_empty: Optional[bool] = option(
        None, help="without var2: add an axis of size 1 at the end (default only before behavior version 3)"
    )
    use_mask: bool = option(True, help="ignore frames after the end of a sequence; False: they count too")
    debug: bool = option(False, help="check shapes", inert="shapes are always checked")

    def template(self, ctx: PlanContext) -> DotPlan:
        """Infer the output: common axes, var1, var2."""
        if len(self.sources) != 2:
            raise ctx.error("needs exactly two sources in 'from', got %d." % len(self.sources))
        a, b = (node.output for node in self.sources)
        sparse = self._sparse_source(ctx, a, b)
        red1, red2 = self._reduced(ctx, a, b, sparse)
        var1, var2 = self._given_var(ctx, a, 0), self._given_var(ctx, b, 1)
        axes = match_leftovers(ctx, (a, b), (red1, red2), (var1, var2))
        return self._planned(ctx, a, b, sparse, axes)

    def _sparse_source(self, ctx: PlanContext, a: Data, b: Data) -> Optional[int]:
        """Return the source that acts as one-hot vectors."""
        if not isinstance(self.reduce, Dim):
            return None
        found = [i for i, data in enumerate((a, b)) if data.sparse_dim is not None and not data.axes_of(self.reduce)]
        found = [i for i in found if (a, b)[i].sparse_dim.agrees_with(self.reduce)]  # type: ignore[union-attr]
        if len(found) == 2:
            raise ctx.error("both sources are sparse, %s and %s; make one of them dense." % (a, b))
        return found[0] if found else None

    def _reduced(self, ctx: PlanContext, a: Data, b: Data, sparse: Optional[int]) -> tuple[list[int], list[int]]:
        if self.reduce is not None:
            if self.red1 is not _AUTO or self.red2 is not _AUTO:
                raise ctx.error("give either 'reduce' or 'red1' and 'red2', not both.")
            given: list[Any] = [self.reduce, self.reduce]
        else:
            old = ctx.behavior_version < 3
            given = [d if r is _AUTO and old else r for r, d in zip((self.red1, self.red2), _OLD_DEFAULTS)]
            if any(g is _AUTO for g in given):
                raise ctx.error("the axes to sum over are missing: give 'reduce', or 'red1' and 'red2'.")
        both = []
        for i, (data, desc) in enumerate(zip((a, b), given)):
            axes = [] if i == sparse else prefer_axes(ctx, data, desc)
            if not axes and i != sparse and desc not in (None, [], ()):
                raise ctx.error("there is no axis %s to sum over in source %d, %s." % (_show(desc), i + 1, data))
            both.append(axes)
        return both[0], both[1]

    def _given_var(self, ctx: PlanContext, data: Data, index: int) -> Optional[list[int]]:
        value = (self.var1, self.var2)[index]
        if value is _AUTO:
            if ctx.behavior_version >= 3 or self.reduce is not None:
                return None
            value = _OLD_DEFAULTS[2 + index]
        return [] if value is None else prefer_axes(ctx, data, value)

    def _planned(self, ctx: PlanContext, a: Data, b: Data, sparse: Optional[int], axes: DotAxes) -> DotPlan:
        dims = [a.dims[i] for i in axes.common1] + [a.dims[i] for i in axes.var1] + [b.dims[i] for i in axes.var2]
        add = ctx.behavior_version < 3 if self.add_var2_if_empty is None else self.add_var2_if_empty
        has_var2 = any(not b.dims[i].is_loop for i in axes.var2)
        adds_axis = bool(add and not has_var2)
        if adds_axis:
            dims.append(ctx.new_feature(1))
        dtype = b.dtype if sparse == 0 else a.dtype
        if sparse is None and a.dtype != b.dtype:
            raise ctx.error("the sources have dtypes %s and %s. Cast one of them." % (a.dtype, b.dtype))
        time = _kept_time(a, b, axes)
        data = Data.from_dims(dims, dtype=dtype) if time is None else Data.from_dims(dims, dtype=dtype, time_axis=time)
        return DotPlan(data, sparse, axes, adds_axis)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one (batched) matrix product, or a row lookup."""
        x = [ctx.source(0), ctx.source(1)]
        axes = self.plan.axes
        sparse = self.plan.sparse
        if sparse is not None:
            return self._with_added_axis(gather_rows(x[0], x[1], axes, sparse=sparse))
        which, mask = self._mask(ctx)
        y, once = self._attended(ctx, x), self._once(ctx, which, mask)
        if once is not None:
            x[once[0]] = once[1].values
        if y is None:
            parts = _masked(x[0], x[1], which, mask)
            y = self._contracted(ctx, parts) if once is None else self._contracted_in_beam(ctx, parts, once)
        y = self._with_added_axis(y)
        if ctx.train or once is not None:
            first, second, out = axis_letters(axes)
            labels = [*out, "added"] if self.plan.adds_axis else out
            note_product(ctx, y, Factor(x[0], tuple(first)), Factor(x[1], tuple(second)), labels)
        return y

    def _contracted(self, ctx: EmitContext, x: Sequence[Any]) -> Any:
        low = ctx.product_dtype
        return full(contract(reduced(x[0], low), reduced(x[1], low), self.plan.axes), low)

    def _with_added_axis(self, y: Any) -> Any:
        return tf.expand_dims(y, -1) if self.plan.adds_axis else y

    def ignores_padding(self) -> bool:
        """Return whether frames after the end of a sequence count as 0."""
        return self.use_mask

    def _attended(self, ctx: EmitContext, x: Sequence[Any]) -> Optional[Any]:
        """Return the product if one source has attention weights, of which those after the end of a sequence are 0."""
        *letters, out = axis_letters(self.plan.axes)
        for i in range(2):
            base = ctx.aux(self.sources[1 - i], PER_SEQUENCE) or x[1 - i]
            y = attended(ctx, self.sources[i], letters[i], letters[1 - i], out, base)
            if y is not None:
                return y
        return None

    def _once(self, ctx: EmitContext, which: int, mask: Any) -> Optional[tuple[int, PerSequence]]:
        """Return the source that is the same for all hypotheses of a search, if the other one is not; None: it is not.

        :param which: the source that is masked
        """
        found = [ctx.aux(node, PER_SEQUENCE) for node in self.sources]
        once, values = (0, found[0]) if found[1] is None else (1, found[1])
        if values is None or None not in found or (mask is not None and which == once) or self._batch() is None:
            return None
        return once, values

    def _batch(self) -> Optional[int]:
        """Return the batch axis, if both sources have it."""
        dims = self.sources[0].output.dims
        return next((i for i, axis in enumerate(self.plan.axes.common1) if dims[axis].is_batch), None)

    def _contracted_in_beam(self, ctx: EmitContext, x: Sequence[Any], once: tuple[int, PerSequence]) -> Any:
        """Emit the product where one source has an entry per sequence, the other one per hypothesis."""
        *letters, out = axis_letters(self.plan.axes)
        parts, batch = list(zip(x, letters)), self._batch()
        assert batch is not None
        return product_in_beam(
            parts[once[0]],
            parts[1 - once[0]],
            out,
            batch=out[batch],
            beam=once[1].beam,
            with_gradient=ctx.train,
            product_dtype=ctx.product_dtype,
        )

    def _mask(self, ctx: EmitContext) -> tuple[int, Optional[Any]]:
        """Return (the source, a mask of the frames in it that count): that with fewer axes, if it has the lengths."""
        a, b = (node.output for node in self.sources)
        reds = self.plan.axes.red1, self.plan.axes.red2
        which = 0 if a.rank < b.rank else 1
        if not self.use_mask:
            return which, None
        datas = a, b
        if datas[which].batch_axis is None and datas[1 - which].batch_axis is not None:
            which = 1 - which
        if not ctx.knows_mask(datas[which], reds[which]):
            which = 1 - which
        data = datas[which]
        return which, None if data.batch_axis is None else ctx.masks(data, reds[which])


def _kept_time(a: Data, b: Data, axes: DotAxes) -> Optional[int]:
    """Return the axis of the output that is the time axis of the first source that has it there; static ones count."""
    own = [*axes.common1, *axes.var1]
    if a.time_axis in own:
        return own.index(a.time_axis)
    other = [*axes.common2, *axes.var2]
    if b.time_axis in other:
        index = other.index(b.time_axis)
        return index if index < len(axes.common2) else index + len(axes.var1)
    return None


def _masked(x1: Any, x2: Any, which: int, mask: Optional[Any]) -> tuple[Any, Any]:
    """Zero the frames that don't count in one of the sources."""
    if mask is None:
        return x1, x2
    return (fill_masked(x1, mask, 0), x2) if which == 0 else (x1, fill_masked(x2, mask, 0))


def _show(desc: Any) -> str:
    return repr(desc) if isinstance(desc, str) else str(desc)


#: Since this version dims are equal only by declaration.
_STRICT_VERSION = 14


def prefer_axes(ctx: PlanContext, data: Data, desc: Any) -> list[int]:
    """Resolve a description; a dim matches an anonymous axis of its size if no axis is the dim itself."""
    if isinstance(desc, (list, tuple)):
        several = [part for part in desc if isinstance(part, Dim) and ctx.has_axis(data, part)]
        known = dict(zip(several, ctx.each_axis(data, several)))
        each = ([known[part]] if part in several else prefer_axes(ctx, data, part) for part in desc)
        return list(dict.fromkeys(axis for axes in each for axis in axes))
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


def _pair(a: Data, b: Data, rest1: Sequence[int], rest2: Sequence[int]) -> list[tuple[int, int]]:
    """Pair axes of equal dims, identical objects first."""
    pairs = pair_same(a, rest1, b, rest2)
    for i in rest1:
        if i not in [p for p, _ in pairs]:
            free = (j for j in rest2 if j not in [q for _, q in pairs] and a.dims[i].agrees_with(b.dims[j]))
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
