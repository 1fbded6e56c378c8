"""Sums of gradients, losses and flags over all ranks in the traced step (``reduce`` is "grad").

In every step each rank then sees the same gradient, losses, errors and counts, as if it had computed the batches of all
ranks as one. So all ranks make the same decisions on NaN, spikes and the learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from returnn_tf.compiler.lower import Lowered
from returnn_tf.config.settings.distributed import FP16, Distributed
from returnn_tf.engine.distributed.buckets import MEGABYTE, buckets, sum_in_buckets
from returnn_tf.engine.distributed.collectives import Collectives
from returnn_tf.engine.update.gradients import Gradients, MetaGradients, global_norm
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.layer import Node
from returnn_tf.graph.loss import LossNode
from returnn_tf.util.lazy_tf import tf

_KINDS = ("losses", "errors", "counts")


class GradReduction:
    """Emits the reductions of one traced step, in the same order on all ranks.

    Losses are sums over frames or sequences, so their gradients are summed. A normalised loss (a mean over the batch)
    is weighted by the share of this rank's frames. Losses and constraints on parameters count once in total;
    constraints on outputs are sums over frames, as losses are.

    :param losses: of the network
    """

    def __init__(self, collectives: Collectives, options: Distributed, losses: Sequence[LossNode]) -> None:
        self._collectives = collectives
        self._size = collectives.size
        self._average = options.average_gradients
        self._in_fp16 = options.compression == FP16
        self._bucket = options.bucket_size * MEGABYTE
        self._scales: dict[str, float] = {node.name: node.scale for node in losses}
        self._normalized = frozenset(node.name for node in losses if node.loss.use_normalized_loss)
        self._common = frozenset(node.name for node in losses if _is_common(node))
        #: scalar of the traced step: seconds from the last of this rank's gradients to those of all
        self.seconds: Any = None
        #: index from 0 of the last step in which this rank was ready to reduce: shows who blocks the others
        with tf.device("/CPU:0"):
            self.arrived = tf.Variable(-1, dtype="int64", trainable=False, name="arrived")
            #: likewise, in which this rank began to send: such a step can't be done again
            self.begun = tf.Variable(-1, dtype="int64", trainable=False, name="begun")

    def share(self, graph: Lowered, flags: Any) -> Lowered:
        """Return the graph with the share of this rank, by its flags, in the common objective: a sum of shares."""
        own = flags[0]
        factors = self._factors(graph, own)
        shares = {name: 1 / self._size if name in self._common else own for name in graph.counts}
        losses = {name: _times(value, factors[name]) for name, value in graph.losses.items()}
        errors = {name: _times(value, own) for name, value in graph.errors.items()}
        counts = {name: _times(value, shares[name]) for name, value in graph.counts.items()}
        objective = self._objective(graph, losses)
        constraints, on_outputs = tf.convert_to_tensor(graph.constraints), graph.output_constraints
        if on_outputs is not None:
            constraints -= on_outputs
        if not self._average:
            constraints = constraints / self._size
        if on_outputs is not None:
            constraints += _times(on_outputs, own)
        return dataclasses.replace(
            graph, losses=losses, errors=errors, counts=counts, objective=objective, constraints=constraints
        )

    def _factors(self, graph: Lowered, own: Any) -> dict[str, Any]:
        """Return by loss: 1, or the share of the frames for a normalised loss; 0 in an idle step.

        Of a loss that is the same on all ranks, each has an equal share.
        """
        factors = {name: 1 / self._size if name in self._common else own for name in graph.losses}
        names = [name for name in graph.losses if name in self._normalized]
        if names:
            mine = tf.stack([_times(tf.cast(graph.counts[name], "float64"), own) for name in names])
            # the gradient must not go through the counts
            total = self._collectives.sum(tf.stop_gradient(mine), "returnn.counts")
            for index, name in enumerate(names):
                factors[name] = tf.math.divide_no_nan(mine[index], total[index])
        return factors

    def _objective(self, graph: Lowered, losses: dict[str, Any]) -> Any:
        terms = []
        for name, value in losses.items():
            scale = self._scales[name]
            if self._average and name in self._normalized | self._common:
                scale *= self._size  # which cancels the division by the mean over the ranks
            if scale:
                terms.append(value * scale)
        return tf.add_n(terms) if terms else graph.objective

    def reduce(
        self, grads: Gradients, graph: Lowered, flags: Any, total_loss: Any
    ) -> tuple[Gradients, Lowered, Any, Any]:
        """Sum everything over the ranks, the gradients in buckets while the backward pass goes on.

        :param grads: Gradients of the shared graph
        :param graph: from `share`
        :return: common gradients, the graph with the common losses, the common total loss, and the sums of the
            flags (float64 [`control.SIZE`])
        """
        named = {(kind, name): value for kind in _KINDS for name, value in getattr(graph, kind).items()}
        scalars = [tf.cast(value, "float64") for value in named.values()] + [tf.cast(total_loss, "float64")]
        sent = self._compressed(grads.raw)
        # nothing is sent before the first message is complete: up to there, a step that fails can be done again
        with tf.control_dependencies(self._first_message(sent)):
            begun = self.begun.assign_add(1)
        with tf.control_dependencies([begun]):
            vector = self._collectives.sum(tf.concat([tf.stack(scalars), flags], 0), "returnn.scalars")
            raw = self._sum_gradients(grads.raw, sent, "returnn.gradients")
            sent = self._compressed(grads.constraints)
            constraints = self._sum_gradients(grads.constraints, sent, "returnn.constraints")
        sums = tf.unstack(vector[: len(scalars)])
        common: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        for (kind, name), value in zip(named, sums):
            common[kind][name] = value
        total = sums[-1] / self._size if self._average else sums[-1]
        norm = global_norm([grad for _, grad in sorted(raw.items())])
        with tf.control_dependencies(list(grads.raw.values())):
            arrived = self.arrived.assign_add(1)
            start = tf.timestamp()
        with tf.control_dependencies([arrived, start, *raw.values(), vector]):
            self.seconds = tf.timestamp() - start
        common_graph = dataclasses.replace(
            graph, losses=common["losses"], errors=common["errors"], counts=common["counts"]
        )
        return Gradients(raw, norm, constraints), common_graph, total, vector[len(scalars) :]

    def share_of_meta_loss(self, loss: MetaLoss, count: Any, flags: Any) -> tuple[Any, float]:
        """Return the factor that makes a loss on gradients the share of this rank, and one in its gradient.

        Like those of other losses, sums are summed, and means are weighted by the share of this rank's numbers.

        :param count: number of gradient entries on this rank
        """
        own = tf.cast(flags[0], "float32")
        if not loss.is_mean:
            return own, 1.0
        mine = tf.cast(count, "float32") * own
        total = self._collectives.sum(mine, "returnn.meta_count.%s" % loss.name)
        return tf.math.divide_no_nan(mine, total), self._size if self._average else 1.0

    def reduce_meta(self, meta: MetaGradients, flags: Any) -> MetaGradients:
        """Sum gradients, values and counts of losses on gradients over the ranks."""
        if not meta.values:
            return meta
        names = list(meta.values)
        parts = [tf.cast(meta.values[name], "float64") for name in names]
        parts += [tf.cast(meta.counts[name], "float64") * flags[0] for name in names]
        sums = tf.unstack(self._collectives.sum(tf.stack(parts), "returnn.meta_scalars"))
        grads = self._sum_gradients(meta.grads, self._compressed(meta.grads), "returnn.meta_gradients")
        return MetaGradients(grads, dict(zip(names, sums)), dict(zip(names, sums[len(names) :])))

    def average(self, variables: list[Any], own: Any, active: Any) -> list[Any]:
        """Return the mean of variables over the ranks which had a batch; for statistics, e.g. running means."""
        mine = [tf.where(own > 0, var, tf.zeros_like(var)) for var in variables]
        sums = sum_in_buckets(mine, "returnn.statistics", self._bucket, self._collectives.sum_group)
        return [value / tf.cast(active, value.dtype) for value in sums]

    def _compressed(self, grads: dict[str, Any]) -> list[Any]:
        """Return gradients as they are sent."""
        return [tf.cast(grad, "float16") if self._in_fp16 else grad for grad in grads.values()]

    def _first_message(self, sent: list[Any]) -> list[Any]:
        """Return the tensors of the message that is complete before the others."""
        return [sent[index] for indices in buckets(sent, self._bucket)[:1] for index in indices]

    def _sum_gradients(self, grads: dict[str, Any], sent: list[Any], name: str) -> dict[str, Any]:
        """Return the sums of gradients over the ranks, or the means.

        :param sent: from `_compressed`
        """
        sums = sum_in_buckets(sent, name, self._bucket, self._collectives.sum_group)
        common = {key: tf.cast(value, grad.dtype) for (key, grad), value in zip(grads.items(), sums)}
        return {key: grad / self._size for key, grad in common.items()} if self._average else common


def _is_common(loss: LossNode) -> bool:
    """Return whether a loss is the same on all ranks: it has no batch axis, and reads no data, directly or not."""
    todo = [loss.owner] if loss.target is None else [loss.owner, loss.target]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.deps
    return loss.owner.output.batch_axis is None and not any(node.extern_key for node in seen)


def _times(value: Any, factor: Any) -> Any:
    """Return the product; zero if the factor is zero, even for NaN and Inf."""
    value = tf.convert_to_tensor(value)
    return tf.math.multiply_no_nan(value, tf.cast(factor, value.dtype))
