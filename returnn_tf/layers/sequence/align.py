"""`fast_bw` and `forced_align`: soft and best alignments of labels to frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from returnn_tf.config.options import LayerRef, option
from returnn_tf.graph.aux_values import OUTPUT_LOSS
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Node, Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.graph.same_labels import SameLabels, same_labels
from returnn_tf.layers.sequence.automata import AUTOMATON_SERVERS
from returnn_tf.layers.shared.concat_input import ConcatInputLayer
from returnn_tf.ops.activations import safe_log
from returnn_tf.ops.frames.shape import transpose, with_sizes
from returnn_tf.ops.sequence.alignments import acceptor_alignment, acceptor_path, best_alignment, soft_alignment
from returnn_tf.ops.sequence.fast_bw import Topology, chain_topology, ctc_topology, label_topology
from returnn_tf.ops.sequence.fsa import Acceptors, acceptors_by_function
from returnn_tf.tensor import SEQ_TAG, Data, Dim, DimKind
from returnn_tf.util.lazy_tf import tf

_ALIGN_TARGETS = ("ctc", "hmm", "staircase", "automaton", "sprint")
_TOPOLOGIES = ("ctc", "rna", "automaton")
_INPUT_TYPES = ("prob", "log_prob")
#: Native ops check the states on the host; computed on a GPU they would require a synchronisation.
_HOST = "CPU:0"


@dataclasses.dataclass(frozen=True)
class CtcTopologyOptions:
    """The options in ``ctc_opts`` of `fast_bw`."""

    blank_idx: int = option(-1, help="class of the blank; default: the last one")
    label_loop: bool = option(True, help="allow a label to span several frames")


@dataclasses.dataclass(frozen=True, eq=False)
class FastBaumWelchPlan(LayerPlan):
    """The plan of `FastBaumWelchLayer`.

    :param labels: the layer with the labels, if they come from one
    :param seq_tags: the input with the names of the sequences, if they are needed
    """

    labels: Optional[Node]
    seq_tags: Optional[Node]


@register_layer("fast_bw")
class FastBaumWelchLayer(ConcatInputLayer, Planned[FastBaumWelchPlan]):
    """The posteriors of all labels at each frame, summed over all alignments of the target (Baum-Welch).

    align_target "ctc": the labels in ``align_target_key``, each for one or more frames, with optional blanks between
    (Graves et al. 2006). "hmm": the same without blanks. "staircase": class 0 in the first frame, 1 in the second, ...,
    in as many frames as ``staircase_seq_len_source`` has; the frames after them are not aligned. "automaton": defined
    by the function in ``automaton``. It gets the labels of a sequence, an int array, and returns a list of edges
    ``(from, to, class)`` or ``(from, to, class, cost)``; each edge reads one frame; state 0 is the initial state, the
    highest one the final state; costs (negative log probabilities) are scaled by ``tdp_scale``. It is Python, called in
    every training step. "sprint": made by RASR for the name of the sequence, with the options ``sprint_opts``.

    For the loss "via_layer", which derives the gradient from it.
    Output: time-major, probabilities that sum to 1 in every valid frame, zeros in padded ones; no gradient.
    The loss of a sequence, minus the log of the sum over all alignments, goes to that loss.
    Parameters: none. Lengths: unchanged.

    Example::

        network = {
            "p": {"class": "softmax", "n_out": 4, "from": "data"},
            "output": {
                "class": "fast_bw", "align_target": "ctc", "align_target_key": "classes",
                "input_type": "prob", "from": "p"}}
    """

    align_target: str = option(choices=_ALIGN_TARGETS, help="which paths there are")
    automaton: Optional[Callable[..., Any]] = option(
        None, help="for automaton: function from the labels of a sequence to edges, see above"
    )
    align_target_key: Optional[str] = option(None, help="data key of the labels")
    ctc_opts: Optional[dict[str, Any]] = option(None, help="options of align_target 'ctc'", group=CtcTopologyOptions)
    input_type: str = option("log_prob", choices=_INPUT_TYPES, help="kind of the source values")
    tdp_scale: float = option(
        1.0, help="scale of the costs of an automaton of the config or of RASR; they are 0 in the other topologies"
    )
    am_scale: float = option(1.0, help="scale of the log scores")
    min_prob: float = option(0.0, help="lower bound of the probabilities")
    staircase_seq_len_source: Optional[LayerRef] = option(
        None, help="layer whose lengths give the number of classes", refs=True
    )
    sprint_opts: Optional[dict[str, Any]] = option(
        None, help="for sprint: options of RASR, which is started once and answers in each step; as of the loss sprint"
    )

    @classmethod
    def references(cls, options: Mapping[str, Any]) -> Iterator[str]:
        """Return the labels, if they come from a layer."""
        if isinstance(options.get("align_target_key"), str):
            yield options["align_target_key"]

    def template(self, ctx: PlanContext) -> FastBaumWelchPlan:
        """Infer the output: time-major."""
        data = _scores_template(ctx, self.input_template(ctx))
        if (self.align_target == "automaton") != callable(self.automaton):
            raise ctx.error(
                "align_target 'automaton' and the option 'automaton', a function from labels to edges, belong "
                "together; got align_target %r and automaton %r." % (self.align_target, self.automaton)
            )
        if self.ctc_opts and self.align_target != "ctc":
            raise ctx.error("ctc_opts is for align_target 'ctc', not %r. Remove it." % self.align_target)
        labels: Optional[Node] = None
        seq_tags: Optional[Node] = None
        if self.align_target == "sprint":
            where = "Layer %r (class 'fast_bw')" % ctx.node.path
            AUTOMATON_SERVERS.get(self.align_target, where).check(self.sprint_opts, where + ": sprint_opts")
            seq_tags = ctx.depend(ctx.planner.extern_node(SEQ_TAG))
        elif self.sprint_opts:
            raise ctx.error("sprint_opts is for align_target 'sprint', not %r. Remove it." % self.align_target)
        elif self.align_target != "staircase":
            labels = ctx.depend(ctx.planner.target_node(ctx.node, self.align_target_key or "classes"))
            _check_labels(ctx, data, labels.output, self.align_target_key or "classes")
        return FastBaumWelchPlan(data, labels, seq_tags)

    def same_labels(self) -> Iterator[SameLabels]:
        """Return that the classes are the labels of the target, and for CTC a blank."""
        if self.plan.labels is None or self.align_target == "automaton":
            return iter(())
        blank = CtcTopologyOptions(**(self.ctc_opts or {})).blank_idx if self.align_target == "ctc" else None
        return same_labels(self.input, self.plan.labels.output, blank)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one pass over time, forward and backward side by side."""
        data = ctx.output
        scores, lens = _scores(ctx, self, self.input_type, self.min_prob)
        scores *= self.am_scale
        if self.align_target == "staircase":
            lens = tf.minimum(lens, self._staircase_lens(ctx))
        if self.align_target in ("automaton", "sprint"):
            acceptors = self._acceptors(ctx)
            acceptors = dataclasses.replace(acceptors, costs=tf.cast(acceptors.costs, scores.dtype))
            posteriors, total = acceptor_alignment(scores, lens, acceptors)
        else:
            with tf.device(_HOST):
                topology = self._topology(ctx)
            posteriors, total = soft_alignment(scores, lens, topology)
        loss = tf.where(tf.equal(total, float("-inf")), tf.zeros_like(total), -total)  # NaN stays visible
        ctx.set_aux(self.node, OUTPUT_LOSS, loss)
        return with_sizes(posteriors, data.static_shape)

    def _acceptors(self, ctx: EmitContext) -> Acceptors:
        if self.plan.seq_tags is not None:
            assert self.sprint_opts is not None and ctx.output.dim is not None
            where = "Layer %r (class 'fast_bw')" % ctx.node.path
            tags = ctx.value(self.plan.seq_tags)
            server = AUTOMATON_SERVERS[self.align_target]
            return server.acceptors(self.sprint_opts, where, tags, ctx.output.dim, self.tdp_scale)
        assert self.plan.labels is not None and ctx.output.dim is not None and self.automaton is not None
        where = "Layer %r: automaton" % ctx.node.path
        given = acceptors_by_function(self.automaton, *_labels(ctx, self.plan.labels), ctx.output.dim, where)
        return Acceptors(given.edges, given.costs * self.tdp_scale, given.num_states)

    def _topology(self, ctx: EmitContext) -> Topology:
        if self.plan.labels is not None:
            if self.align_target == "hmm":
                return label_topology(*_labels(ctx, self.plan.labels))
            opts = CtcTopologyOptions(**(self.ctc_opts or {}))
            labels, label_lens = _labels(ctx, self.plan.labels)
            classes = ctx.output.dim
            assert classes is not None
            blank = opts.blank_idx % classes
            return ctc_topology(labels, label_lens, blank, label_loop=opts.label_loop)
        lens = self._staircase_lens(ctx)
        return chain_topology(lens, tf.reduce_max(tf.concat([lens, [0]], axis=0)))

    def _staircase_lens(self, ctx: EmitContext) -> Any:
        """Return the number of classes of each sequence, which is that of the frames that are aligned."""
        source: Node = self.staircase_seq_len_source or self.source
        dim = source.output.time_dim
        assert dim is not None
        return _lens(ctx, dim)


@register_layer("forced_align")
class ForcedAlignLayer(ConcatInputLayer):
    """The best alignment of labels to frames (Viterbi): a label or the blank for every frame.

    topology "ctc": every label lasts one or more frames; "rna": exactly one frame (Sak et al. 2017). "automaton":
    defined by the function in ``automaton``, as in `fast_bw`.
    Output: time-major, sparse. Sub output ``scores`` [batch]: the log score of the best path.
    Parameters: none. Lengths: those of the source.

    Example::

        network = {
            "p": {"class": "softmax", "n_out": 4, "from": "data"},
            "output": {
                "class": "forced_align", "align_target": "data:classes", "topology": "ctc",
                "input_type": "prob", "from": "p"}}
    """

    align_target: LayerRef = option(help="layer or data:key with the labels", refs=True)
    topology: str = option(choices=_TOPOLOGIES, help="which paths there are")
    automaton: Optional[Callable[..., Any]] = option(
        None, help="for automaton: function from the labels of a sequence to edges, see fast_bw"
    )
    input_type: str = option(choices=_INPUT_TYPES, help="kind of the source values")
    blank_idx: int = option(-1, help="index of the blank; -1: the last class")
    blank_included: bool = option(False, help="whether the labels include the blank")

    def template(self, ctx: PlanContext) -> Data:
        """Infer the output: time-major, without the class axis."""
        data = _scores_template(ctx, self.input_template(ctx))
        if (self.topology == "automaton") != callable(self.automaton):
            raise ctx.error(
                "topology 'automaton' and the option 'automaton', a function from labels to edges, belong together; "
                "got topology %r and automaton %r." % (self.topology, self.automaton)
            )
        labels = self.align_target.output
        _check_labels(ctx, data, labels, self.align_target.path)
        classes = data.feature_dim
        assert classes is not None and classes.size is not None and labels.sparse_dim is not None
        if self.blank_included and labels.dim != classes.size:
            raise ctx.error(
                "blank_included: the source has %s classes and the labels of %r have %s; both must be the same."
                % (classes.size, self.align_target.path, labels.dim)
            )
        sparse_dim = (
            labels.sparse_dim
            if self.blank_included
            else Dim(DimKind.FEATURE, classes.size, classes.description, auto=True)
        )
        ctx.sub_output("scores", Data((data.dims[1],), ctx.float_dtype))
        return Data(data.dims[:2], "int32", None, 0, sparse_dim)

    def same_labels(self) -> Iterator[SameLabels]:
        """Return that the path has the classes of the source, which are those of the target and a blank."""
        scores = self.input
        yield from same_labels(scores, self.node.output)
        if self.topology != "automaton":
            yield from same_labels(scores, self.align_target.output, self.blank_idx)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit one pass over time forward, one back."""
        scores, lens = _scores(ctx, self, self.input_type, 0.0)
        labels, label_lens = _labels(ctx, self.align_target)
        classes = scores.shape[-1]
        if self.topology == "automaton":
            assert self.automaton is not None
            where = "Layer %r: automaton" % ctx.node.path
            acceptors = acceptors_by_function(self.automaton, labels, label_lens, classes, where)
            path, total = acceptor_path(scores, lens, acceptors)
        else:
            with tf.device(_HOST):
                topology = ctc_topology(labels, label_lens, self.blank_idx % classes, label_loop=self.topology == "ctc")
            path, total = best_alignment(scores, lens, topology)
        ctx.set_sub_output("scores", total)
        return path


def _scores_template(ctx: PlanContext, data: Data) -> Data:
    """Return the template of the input with time first, batch second, classes last."""
    ctx.need_static(ctx.need_feature(data), "the class axis")
    if data.rank != 3 or data.time_axis is None or data.batch_axis is None or data.time_axis == data.feature_axis:
        raise ctx.error("the source must have batch, time and classes, but it is %s." % data)
    assert data.feature_axis is not None
    return data.permuted([data.time_axis, data.batch_axis, data.feature_axis])


def _check_labels(ctx: PlanContext, scores: Data, labels: Data, name: str) -> None:
    """Check for sparse sequences whose labels, and the blank, are among the classes."""
    if not labels.sparse or labels.rank != 2 or labels.time_axis is None:
        raise ctx.error("the labels of %r must be sparse sequences [batch, time], but they are %s." % (name, labels))
    if labels.dim is not None and scores.dim is not None and labels.dim > scores.dim:
        raise ctx.error(
            "the source has %d classes, but %r has %d labels. It needs one class per label, and one for the "
            "blank." % (scores.dim, name, labels.dim)
        )


def _scores(ctx: EmitContext, layer: ConcatInputLayer, input_type: str, min_prob: float) -> tuple[Any, Any]:
    """Return ([time, batch, classes] log scores, [batch] lengths)."""
    data = layer.input
    assert data.time_axis is not None and data.batch_axis is not None and data.feature_axis is not None
    x = transpose(layer.emit_input(ctx), [data.time_axis, data.batch_axis, data.feature_axis])
    if input_type == "prob":
        x = safe_log(x, eps=max(min_prob, 1e-20))
    elif min_prob > 0:
        x = tf.maximum(x, tf.math.log(tf.cast(min_prob, x.dtype)))
    return x, _lens(ctx, data.dims[data.time_axis])


def _labels(ctx: EmitContext, node: Node) -> tuple[Any, Any]:
    """Return ([batch, time] labels, [batch] lengths)."""
    data = node.output
    assert data.time_axis is not None and data.batch_axis is not None
    return transpose(ctx.value(node), [data.batch_axis, data.time_axis]), _lens(ctx, data.dims[data.time_axis])


def _lens(ctx: EmitContext, dim: Dim) -> Any:
    source = ctx.node.sources[0]
    return tf.broadcast_to(ctx.lens(dim), [tf.shape(ctx.value(source))[source.output.batch_axis]])
