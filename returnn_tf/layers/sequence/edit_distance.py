"""`edit_distance`, `edit_distance_table`, `optimal_completions`: Levenshtein distances to a reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Optional

from returnn_tf.config.options import LayerRef, at_least, option
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import AxisOption, Layer, Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.layers.shared.loop_axis import check_single_step
from returnn_tf.ops.sequence.edit_distance import edit_distance
from returnn_tf.ops.sequence.edit_distance_table import completions, first_row, next_row
from returnn_tf.tensor import Data, Dim
from returnn_tf.util.lazy_tf import tf


@register_layer("edit_distance")
class EditDistanceLayer(Layer):
    """The edit distance of two label sequences: insertions, deletions and substitutions, not normalised; int32 [batch].

    No parameters. Lengths: none.

    Example::

        extern_data = {"data": {"dim": 4, "sparse": True}, "classes": {"dim": 4, "sparse": True}}
        network = {"output": {"class": "edit_distance", "a": "data:data", "b": "data:classes"}}
    """

    needs_sources = False
    a: LayerRef = option(help="layer with labels [batch, time]", refs=True)
    b: LayerRef = option(help="layer with labels [batch, time]", refs=True)
    a_spatial_dim: Optional[Dim] = option(None, help="the time axis of ``a``; checked")
    b_spatial_dim: Optional[Dim] = option(None, help="the time axis of ``b``; checked")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: [batch]."""
        for dim, node in ((self.a_spatial_dim, self.a), (self.b_spatial_dim, self.b)):
            if dim is not None:
                ctx.axis(node.output, dim)
        for name, node in (("a", self.a), ("b", self.b)):
            _check_labels(ctx, name, node.output)
        data = self.a.output
        return Data.from_dims([data.dims[data.batch_axis]], dtype="int32")

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one op."""
        a, b = (_labels(ctx, node) for node in (self.a, self.b))
        return tf.cast(edit_distance(*a, *b), tf.int32)


@dataclasses.dataclass(eq=False, repr=False)
class _WithReference(Layer):
    """A layer in a loop with a reference as target."""

    has_memory = True
    blank_idx: Optional[int] = option(
        None, check=at_least(0), help="label that stands for no label, as the blank of CTC; None: there is none"
    )
    debug: bool = option(False, help="print the values", inert="add a 'print' layer to see them")

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the target, if it names a layer."""
        target = options.get("target")
        if isinstance(target, str) and target.startswith("layer:"):
            yield target[len("layer:") :]

    def _reference(self, ctx: PlanContext) -> Node:
        if not isinstance(self.target, str):
            raise ctx.error("target must name the layer or data key with the reference, got %r." % (self.target,))
        node = ctx.depend(ctx.planner.target_node(ctx.node, self.target))
        _check_labels(ctx, "target", node.output)
        return node


@dataclasses.dataclass(frozen=True, eq=False)
class EditDistanceTablePlan(LayerPlan):
    """The plan of `EditDistanceTableLayer`.

    :param node: the layer with the reference
    :param time: the positions in the reference
    """

    node: Node
    time: Any


@register_layer("edit_distance_table")
class EditDistanceTableLayer(_WithReference, Planned[EditDistanceTablePlan]):
    """In a loop: the distances of the labels so far to all prefixes of the reference, int32 [batch, reference + 1].

    ``d[i, j] = min(d[i-1, j] + 1, d[i, j-1] + 1, d[i-1, j-1] + (a[i] != b[j]))``, one row i per step (Wagner & Fischer
    1974). The label ``blank_idx`` changes nothing: the row stays the same. In the first step, ``prev:`` gives the row
    of the empty sequence. No parameters.
    Lengths: those of the reference plus one.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "target": "classes", "unit": {
                "prob": {"class": "softmax", "target": "classes", "from": "emb"},
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "output": {"class": "choice", "target": "classes", "beam_size": 2, "initial_output": 0,
                    "from": "prob"},
                "table": {"class": "edit_distance_table", "from": "output", "target": "layer:base:data:classes"},
                "best": {"class": "optimal_completions", "from": "prev:table", "is_output_layer": True,
                    "target": "layer:base:data:classes"}}},
            "output": {"class": "copy", "from": "loop/best"}}
    """

    axis: Optional[AxisOption] = option(None, help="single_step_dim or the dim of the steps of the loop; checked")

    def template(self, ctx: PlanContext) -> EditDistanceTablePlan:
        """Infer the output: [batch, reference + 1]."""
        check_single_step(ctx, self.axis)
        if not ctx.in_step:
            raise ctx.error("this layer computes one row per step of a loop. Put it into the unit of a 'rec' layer.")
        data = ctx.single_source()
        if data.sparse_dim is None or data.rank != 1 or data.batch_axis is None:
            raise ctx.error("the source must be one label per sequence, not %s." % data)
        node = self._reference(ctx)
        time = _time_dim(node.output)
        new = ctx.bind(self.out_dim, time + 1)
        out = Data.from_dims([data.dims[0], new], dtype="int32").replace(beam=data.beam)
        ctx.loop_state("row", out, self.initial_output_value)
        return EditDistanceTablePlan(out, node, time)

    def gives_initial_output(self) -> bool:
        """Return True: the distances of the empty sequence."""
        return True

    def initial_output_value(self, ctx: EmitContext) -> Any:
        """Return the row before the first step."""
        return first_row(ctx.size(ctx.output.dims[0]), ctx.size(self.plan.time))

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the next row."""
        row = next_row(ctx.loop_state("row"), ctx.source(), _labels(ctx, self.plan.node)[0], self.blank_idx)
        ctx.set_loop_state("row", row)
        return row


@dataclasses.dataclass(frozen=True, eq=False)
class OptimalCompletionsPlan(LayerPlan):
    """The plan of `OptimalCompletionsLayer`.

    :param node: the layer with the reference
    """

    node: Node


@register_layer("optimal_completions")
class OptimalCompletionsLayer(_WithReference, Planned[OptimalCompletionsPlan]):
    """For each label: the minimum edit distance to the reference that remains possible if it comes next.

    Sabour et al. 2019. The source is a row of `edit_distance_table`, usually that of the previous step. The output is
    int32 [batch, labels]; with ``blank_idx``, which costs nothing, it has at least the labels up to that.
    No parameters. Lengths: none.

    Example::

        network = {
            "loop": {"class": "rec", "from": [], "target": "classes", "unit": {
                "prob": {"class": "softmax", "target": "classes", "from": "emb"},
                "emb": {"class": "linear", "activation": None, "n_out": 4, "from": "prev:output"},
                "output": {"class": "choice", "target": "classes", "beam_size": 2, "initial_output": 0,
                    "from": "prob"},
                "table": {"class": "edit_distance_table", "from": "output", "target": "layer:base:data:classes"},
                "best": {"class": "optimal_completions", "from": "prev:table", "is_output_layer": True,
                    "target": "layer:base:data:classes"}}},
            "output": {"class": "copy", "from": "loop/best"}}
    """

    def template(self, ctx: PlanContext) -> OptimalCompletionsPlan:
        """Infer the output: [batch, labels]."""
        data = ctx.single_source()
        if data.rank != 2 or data.batch_axis != 0 or not data.dtype.startswith("int"):
            raise ctx.error("the source must be a row of an edit_distance_table, not %s." % data)
        node = self._reference(ctx)
        labels = node.output.dim or 0
        if self.blank_idx is not None:
            labels = max(labels, self.blank_idx + 1)
        if self.n_out not in (None, labels):
            raise ctx.error("n_out is %s, but there are %d labels. Omit n_out." % (self.n_out, labels))
        new = ctx.bind(self.out_dim, ctx.new_feature(labels))
        return OptimalCompletionsPlan(Data.from_dims([data.dims[0], new], dtype="int32").replace(beam=data.beam), node)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit a minimum per label."""
        reference, lens = _labels(ctx, self.plan.node)
        return completions(ctx.source(), reference, lens, ctx.output.dims[1].size or 0, self.blank_idx)


def _check_labels(ctx: PlanContext, name: str, data: Data) -> None:
    if data.sparse_dim is None or data.rank != 2 or data.batch_axis is None:
        raise ctx.error("%s must be label sequences [batch, time], not %s." % (name, data))


def _time_dim(data: Data) -> Any:
    return data.dims[1 - (data.batch_axis or 0)]


def _labels(ctx: EmitContext, node: Node) -> tuple[Any, Any]:
    """Return labels [batch, time] and their lengths [batch]."""
    x, data = ctx.value(node), node.output
    x = x if data.batch_axis == 0 else tf.transpose(x)
    return x, tf.broadcast_to(ctx.lens(_time_dim(data)), tf.shape(x)[:1])
