"""`sprint` and `fast_bw`: losses for which RASR computes losses or automata."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Optional

from returnn_tf.config.errors import TargetError
from returnn_tf.config.options import option
from returnn_tf.graph.loss import Loss, LossContext, LossPlanContext
from returnn_tf.graph.registry import register_loss
from returnn_tf.ops.cross_entropy import with_gradient
from returnn_tf.ops.frames.shape import transpose
from returnn_tf.ops.sequence.alignments import acceptor_alignment
from returnn_tf.rasr.layers.automata import acceptors_of_rasr, check_sprint_opts, text_of_tags
from returnn_tf.rasr.processes.servers import ServerOptions, servers_for
from returnn_tf.tensor import Data
from returnn_tf.util.host_calls import host_call
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(eq=False, repr=False)
class RasrLoss(Loss):
    """A loss [batch] on the values before a softmax, by RASR and the names of the sequences."""

    needs_target: ClassVar[bool] = False
    takes_target: ClassVar[bool] = True
    needs_seq_tags: ClassVar[bool] = True

    sprint_opts: dict[str, Any] = option(
        help="options of RASR, which is started once and answers in each step", group=ServerOptions
    )

    def check(self, ctx: LossPlanContext) -> None:
        """Check for scores of sequences, and for labels as target, if any."""
        output, target = ctx.output, ctx.target
        sequences = output.batch_axis is not None and output.time_axis is not None and output.rank == 3
        if not sequences or output.feature_axis is None or output.time_axis == output.feature_axis:
            raise ctx.error(
                "the loss %r needs an output [batch, time, classes], but it is %s." % (self.class_name, output)
            )
        if target is not None and (not target.sparse or target.rank != 2 or target.time_axis is None):
            raise ctx.error(
                "the loss %r compares the output with the target %r only for the error, for which it must be sparse "
                "[batch, time], but it is %s." % (self.class_name, ctx.target_name, target)
            )
        check_sprint_opts(self.sprint_opts, "Layer %r: loss %r, sprint_opts" % (ctx.node.path, self.class_name))

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Sum over the sequences."""
        return tf.reduce_sum(self._losses(ctx))

    def unreduced_template(self, output: Data, float_dtype: str) -> Data:
        """Return the template [batch]."""
        assert output.batch_axis is not None
        return Data((output.dims[output.batch_axis],), float_dtype)

    def unreduced(self, ctx: LossContext, *, error: bool = False) -> Any:
        """Return the value of each sequence, [batch]."""
        return self._errors(ctx) if error else self._losses(ctx)

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return the number of frames whose best class is not the target; None without one."""
        return None if ctx.target_node is None else tf.reduce_sum(self._errors(ctx))

    def _errors(self, ctx: LossContext) -> Any:
        if ctx.target_node is None:
            return tf.zeros_like(ctx.lens(ctx.output), ctx.float_dtype)
        best = tf.argmax(self._scores(ctx), axis=-1, output_type=tf.int32)  # [time, batch]
        target = ctx.target
        labels = transpose(ctx.target_value, [target.time_axis, target.batch_axis])  # type: ignore[list-item]
        frames = tf.minimum(tf.shape(best)[0], tf.shape(labels)[0])
        inside = tf.transpose(tf.sequence_mask(ctx.lens(ctx.output), frames))
        wrong = tf.logical_and(inside, tf.not_equal(best[:frames], tf.cast(labels[:frames], tf.int32)))
        return tf.reduce_sum(tf.cast(wrong, ctx.float_dtype), axis=0)

    def _scores(self, ctx: LossContext) -> Any:
        """Return the values before the softmax, [time, batch, classes]."""
        if "scores" not in ctx.cache:
            output = ctx.output
            x = ctx.pre_activation("softmax", "log_softmax")
            if x is None:
                raise TargetError(
                    "%s: it needs the values before a softmax, which the layer of class %r does not have. Put it on a "
                    "layer with the activation softmax." % (self._where(ctx), ctx.node.layer.class_name)
                )
            order = [output.time_axis, output.batch_axis, output.feature_axis]
            ctx.cache["scores"] = transpose(x, order)  # type: ignore[arg-type]
        return ctx.cache["scores"]

    def _where(self, ctx: LossContext) -> str:
        return "Layer %r: loss %r" % (ctx.node.path, self.class_name)

    def _losses(self, ctx: LossContext) -> Any:
        """Return the losses [batch], whose gradient is that of RASR."""
        raise AssertionError("%s has no losses" % type(self).__name__)


@register_loss("sprint")
class SprintLoss(RasrLoss):
    """A criterion that RASR computes, such as sMBR or CTC: its loss and its error signal.

    RASR gets ``log(softmax)`` of each sequence; its error signal is the gradient w.r.t. the values before the softmax.
    A segment that RASR discards has neither. Error: wrong frames, if the layer has a target.

    Example::

        network = {"output": {
            "class": "softmax", "n_out": 4, "from": "data", "loss": "sprint", "loss_opts": {"sprint_opts": {
                "sprintExecPath": "sprint-executables/lattice-processor",
                "sprintConfigStr": "--config=loss.sprint.config"}}}}
    """

    def _losses(self, ctx: LossContext) -> Any:
        scores, lens = self._scores(ctx), ctx.lens(ctx.output)
        servers = servers_for(self.sprint_opts, owner=self._where(ctx))

        def ask(tags: Any, lens: Any, log_posteriors: Any) -> Any:
            return servers.losses(text_of_tags(tags), lens, log_posteriors)

        log_posteriors = tf.cast(tf.nn.log_softmax(scores), tf.float32)
        inputs = [ctx.seq_tags, lens, tf.stop_gradient(log_posteriors)]
        losses, errors = host_call(ask, inputs, [tf.float32, tf.float32])
        losses = tf.cast(tf.ensure_shape(losses, [None]), scores.dtype)
        errors = tf.cast(tf.ensure_shape(errors, scores.shape), scores.dtype)
        return with_gradient(losses, scores, lambda grad: errors * grad[None, :, None])


@register_loss("fast_bw")
class FastBaumWelchLoss(RasrLoss):
    """``-log p(target | output)``, summed over all paths through the automaton that RASR makes of a segment.

    Its gradient w.r.t. the values before the softmax is the softmax minus the posteriors of the classes. A segment
    without a path has no loss. Error: wrong frames, if the layer has a target. See the layer `fast_bw` for other
    automata.

    Example::

        network = {"output": {
            "class": "softmax", "n_out": 4, "from": "data", "loss": "fast_bw", "loss_opts": {"sprint_opts": {
                "sprintExecPath": "sprint-executables/nn-trainer",
                "sprintConfigStr": "--*.python-control-loop-type=python-control-loop --*.extract-features=false"}}}}
    """

    tdp_scale: float = option(1.0, help="scale of the weights of the automata")

    def _losses(self, ctx: LossContext) -> Any:
        scores, lens = self._scores(ctx), ctx.lens(ctx.output)
        acceptors = acceptors_of_rasr(
            self.sprint_opts, self._where(ctx), ctx.seq_tags, scores.shape[-1], self.tdp_scale
        )
        log_posteriors = tf.stop_gradient(tf.cast(tf.nn.log_softmax(scores), tf.float32))
        posteriors, total = acceptor_alignment(log_posteriors, lens, acceptors)
        no_path = tf.equal(total, float("-inf"))
        inside = tf.transpose(tf.sequence_mask(lens, tf.shape(scores)[0]))  # [time, batch]
        inside = tf.logical_and(inside, tf.logical_not(no_path))[:, :, None]
        signal = tf.where(inside, tf.exp(log_posteriors) - posteriors, tf.zeros_like(posteriors))
        signal = tf.cast(signal, scores.dtype)
        losses = tf.cast(tf.where(no_path, tf.zeros_like(total), -total), scores.dtype)  # NaN stays visible
        return with_gradient(losses, scores, lambda grad: signal * grad[None, :, None])
