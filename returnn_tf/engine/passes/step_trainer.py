"""One training step: a single traced function from a batch to updated parameters."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.compiler.lower import Lowered, needs_second_derivatives
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import SettingDataError, SettingError
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.engine.distributed.ranks import ranks_for
from returnn_tf.engine.distributed.world import World, start
from returnn_tf.engine.passes.split_step import announce, emit_halves, halves, normalized_losses, why_whole
from returnn_tf.engine.support.nonfinite import NonFiniteError
from returnn_tf.engine.support.step_result import Packer, StepResult
from returnn_tf.engine.update.averages import Averages
from returnn_tf.engine.update.gradients import Gradients
from returnn_tf.engine.update.loss_scaling import LossScaling
from returnn_tf.engine.update.update_guard import UpdateGuard
from returnn_tf.engine.update.updater import Updater
from returnn_tf.graph.quantization import refusal_to_train
from returnn_tf.util.lazy_tf import tf


class StepTrainer:
    """Network with updater and optimizer state, trained step by step; it increments the ``global_step`` of the network.

    The step function is traced at the first call, once for all batch sizes and lengths. If loss or gradient are NaN or
    Inf, no variable changes in that step, unless ``gradient_nan_inf_filter`` or ``grad_norm_to_clip_to_zero`` is set;
    ``loss_spike`` may skip further steps. A step that runs out of memory is computed in two halves where these have the
    same sums, see `returnn_tf.engine.passes.split_step`.

    :param net: Network, planned for training
    :param config: options of the update, ``learning_rate``, those of `UpdateGuard`
    :param world: the processes which train together; default: those of the config, see `start`
    :raises ConfigError: wrong options of the update
    """

    def __init__(self, net: Network, config: Config, world: Optional[World] = None) -> None:
        self.net = net
        self.config = config
        self.world = start(config) if world is None else world
        self.ranks = ranks_for(self.world, config, net)
        _check_meta_losses(net, config)
        if net.plan.semantics.quantization is not None:
            raise refusal_to_train(NetworkSettings(config).describe_source("quantize"))
        if net.jit_compile and self.world.size > 1:
            raise SettingError("jit_compile: XLA can't exchange gradients between processes. Remove jit_compile.")
        self.updater = Updater(net, config)
        #: averages of the parameters, if any are kept
        self.averages = Averages(config, self.updater.variables, self.updater)
        self._default_rate = LearningRateSettings(config).learning_rate
        self._has_dynamic_rate = LearningRateSettings(config).dynamic_learning_rate is not None
        self._guard = UpdateGuard(config)
        self._scaling = LossScaling(config)
        self._normalized = frozenset(normalized_losses(net))
        self.steps_started = 0  # in this process
        self._packer = Packer()
        rate = tf.TensorSpec([], "float32", name="learning_rate")
        self.function = net.feed_function(
            self._emit,
            specs=[rate, *self.ranks.signature()],
            before_trace=lambda: self.ranks.long_phase("tracing the step"),
            jit_compile=net.jit_compile,
            optimized_once=True,
            traces_again=self.world.size == 1,
        )
        self._rates: dict[float, Any] = {}  # the current learning rate as tensor
        #: whether a step that runs out of memory is computed in two halves, where these give the same
        self.splits = True
        with tf.device("/CPU:0"):
            #: number of steps whose gradients were complete: from then on, variables may have changed
            self._decided = tf.Variable(0, dtype="int64", trainable=False, name="decided")
        totals = tf.TensorSpec([len(self._normalized)], "float64", name="totals")
        self._halves = net.feed_function(
            self._emit_halves,
            specs=[rate, totals, *self.ranks.signature()],
            before_trace=lambda: self.ranks.long_phase("tracing the step in two halves"),
            optimized_once=True,
            traces_again=self.world.size == 1,
        )
        self._counts = net.feed_function(self._emit_counts)

    @property
    def step_count(self) -> int:
        """Return the number of steps done over all epochs."""
        return int(self.net.global_step.numpy())

    def state(self) -> dict[str, Any]:
        """Return the variables needed for an exact resume beside parameters and step counter, by name."""
        return {**self.updater.state(), **self.averages.state(), **self._guard.state(), **self._scaling.state()}

    def kept_states(self) -> dict[str, Any]:
        """Return the states that layers keep from batch to batch, of all ranks, by name; all ranks must call it."""
        if not self.net.kept.specs:
            return {}
        ranks = self.world.gather_values(self.net.kept.values())
        return {"%s/%d" % (name, rank): value for rank, found in enumerate(ranks) for name, value in found.items()}

    def restore_kept_states(self, values: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Set what `kept_states` returned, if it was made by the same number of ranks; otherwise reset all states.

        :param params: those of the checkpoint; it has no other states if RETURNN wrote it
        """
        if not any(name.startswith("kept/") for name in values):
            self.net.kept.restore_params(params)
            return
        own = "/%d" % self.world.rank
        same = "/%d" % self.world.size not in {name[name.rfind("/") :] for name in values if name.startswith("kept/")}
        found = {name[: -len(own)]: value for name, value in values.items() if name.endswith(own)}
        self.net.kept.restore(found if same else {})

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch as tensors for `step`; may run in another thread.

        :raises ConfigError: missing entry or wrong shape
        """
        return self.function.tensors(feed)

    def step(self, feed: Mapping[str, Any], learning_rate: Optional[float] = None) -> StepResult:
        """Run one update.

        :param feed: feed key (``data``, ``data/size0``, ...) -> array or tensor, batch axis first
        :param learning_rate: default: option ``learning_rate``
        :return: the objective before the update, losses, errors and the norm of the gradient
        :raises NonFiniteError: loss or gradient is NaN or Inf; with ``stop_on_nonfinite_train_score = False``
            the result has ``finite = False`` instead, and the parameters stay unchanged
        :raises DataError: a spike of the loss or too many skipped steps, see `UpdateGuard`; a rate that can't be used
        :raises ConfigError: the feed does not fit, or the network has no loss
        """
        tensors = self.tensors(feed)
        value = (self._default_rate if learning_rate is None else float(learning_rate)) * self.ranks.rate_factor
        if self.ranks.idle():
            result = StepResult(total_loss=0.0, own=False)
            self.ranks.after_step(result)
            return result
        inputs = self.ranks.inputs((self.steps_started, value))
        self.net.kept.set_idle(not self.ranks.control.own)
        try:
            vector, sinks = self._run(self.function, tensors, self._rate(value), *inputs)
        except tf.errors.ResourceExhaustedError:
            if not (self.splits and self._can_split(tensors)):
                raise
            vector, sinks = self._run(self._halves, tensors, self._rate(value), self._totals(tensors), *inputs)
        result = self._packer.unpack(vector, sinks)
        self.steps_started += 1
        self.ranks.after_step(result)
        self._check_rate(result, value)
        if not result.finite and self._guard.stops_on_nonfinite:
            assert result.step is not None
            error = NonFiniteError(result.step, result.total_loss, result.grad_norm, result.losses)
            error.common = self.ranks.in_step
            error.own_finite = error.common and result.own_finite
            raise error
        self._guard.check(result)
        return result

    def _run(self, function: FeedFunction, tensors: Mapping[str, Any], *further: Any) -> tuple[Any, Mapping[str, Any]]:
        """Run a traced step; return its packed results and the values of sinks.

        :raises DataError: another rank was lost
        """
        graph = function.graph(tensors)
        try:
            vector, sinks = graph(tensors, *further)
            return vector.numpy(), sinks
        except tf.errors.OpError as exc:
            lost = self.ranks.explain(exc)
            if lost is None:
                raise
            raise lost from exc

    def _can_split(self, tensors: Mapping[str, Any]) -> bool:
        """Return whether a step that ran out of memory can be computed in two halves, and log it or why not."""
        has_begun = int(self._decided.numpy()) > self.steps_started
        why = why_whole(
            self.net,
            tensors,
            "variables may have been changed already" if has_begun else "",
            "maximize_grad_norm is not a sum over sequences" if needs_second_derivatives(self.config) else "",
            self.ranks.why_not_again(means=bool(self._normalized)),
        )
        announce("Step %d" % self.step_count, self.net, tensors, why)
        return not why

    def _totals(self, tensors: Mapping[str, Any]) -> Any:
        """Return the counts of the losses that are means over the batch, float64 [losses], by halves of the batch."""
        if not self._normalized:
            return tf.zeros([0], "float64")
        return tf.add_n([self._counts(half) for half in halves(self.net, tensors)])

    def _emit_counts(self, feed: dict[str, Any]) -> Any:
        graph = self.net.lower(feed, train=True)
        return tf.stack([tf.cast(graph.counts[name], "float64") for name in sorted(self._normalized)])

    def _check_rate(self, result: StepResult, of_epoch: float) -> None:
        """Check that the update had a rate. It is the same on all ranks.

        :param of_epoch: the rate before ``dynamic_learning_rate``
        :raises DataError: it is negative, NaN or Inf, so this step changed no parameter
        """
        rate = result.learning_rate
        assert rate is not None
        if not (math.isfinite(rate) and rate >= 0):
            changed = "" if not self._has_dynamic_rate else ", and dynamic_learning_rate makes %s of it" % rate
            raise SettingDataError(
                "Step %s: the learning rate can't be used: that of the epoch is %s%s. The parameters were not changed "
                "by this step." % (result.step, of_epoch, changed)
            )

    def _rate(self, value: float) -> Any:
        if value not in self._rates:
            self._rates = {value: tf.constant(value, "float32")}
        return self._rates[value]

    def _emit(self, feed: dict[str, Any], rate: Any, *inputs: Any) -> Any:
        step, factor = self.net.global_step.read_value(), self._scaling.factor()
        graph, grads = self._with_gradients(self.net.lower(feed, train=True, step=step), factor, inputs)
        return self._emit_update(graph, grads, step, factor, rate, inputs)

    def _emit_halves(self, feed: dict[str, Any], rate: Any, totals: Any, *inputs: Any) -> Any:
        step, factor = self.net.global_step.read_value(), self._scaling.factor()
        by_loss = {name: totals[index] for index, name in enumerate(sorted(self._normalized))}
        graph, grads = emit_halves(
            self.net, feed, by_loss, step, lambda half: self._with_gradients(half, factor, inputs)
        )
        return self._emit_update(graph, grads, step, factor, rate, inputs)

    def _with_gradients(self, graph: Lowered, factor: Any, inputs: tuple[Any, ...]) -> tuple[Lowered, Gradients]:
        """Return a training graph with the share of this rank in the objective, and the gradients of that."""
        if graph.objective is None:
            raise SettingError(_nothing_to_train(self.net))
        graph = self.ranks.share(graph, inputs)
        return graph, self.updater.gradients(graph, factor)

    def _emit_update(
        self, graph: Lowered, grads: Gradients, step: Any, factor: Any, rate: Any, inputs: tuple[Any, ...]
    ) -> Any:
        """Emit the update, and return the packed results and the values of sinks."""
        sinks = graph.sinks
        share = functools.partial(self.ranks.share_of_meta_loss, inputs)
        meta = self.updater.meta_gradients(graph, share)
        rate = self.updater.learning_rate(rate, step)
        grads, graph, total_loss, common = self.ranks.reduce(grads, graph, self.updater.total_loss(graph), inputs)
        meta = self.ranks.reduce_meta(meta, inputs)
        finite = usable = tf.logical_and(tf.math.is_finite(rate), rate >= 0)
        if not self.updater.tolerates_nonfinite:
            finite = tf.reduce_all([usable, tf.math.is_finite(grads.norm), tf.math.is_finite(total_loss)])
        if not self.net.jit_compile:  # such steps are not split
            with tf.control_dependencies([finite, grads.norm]):
                decided = self._decided.assign_add(1)
            with tf.control_dependencies([decided]):
                finite = tf.identity(finite)
        measured = {"loss": _mean_loss(graph, self._normalized), "grad_norm": grads.norm}
        good, spike, counts = self._guard.emit(finite, measured)
        overflow = self._scaling.emit(factor, finite, total_loss)
        finite, counts = tf.logical_or(finite, overflow), tf.logical_or(counts, overflow)

        def further_updates() -> Any:
            self.updater.apply_meta(meta.grads, rate)
            self.averages.emit(step)
            self.ranks.run_updates(graph.updates, common)
            return tf.constant(True)

        self.updater.apply(grads, rate, step, good)
        tf.cond(good, further_updates, lambda: tf.constant(False))
        # A skipped step counts too if training continues: noise and schedules must advance.
        self.net.global_step.assign_add(tf.cast(counts, "int64"))
        graph = dataclasses.replace(
            graph, losses={**graph.losses, **meta.values}, counts={**graph.counts, **meta.counts}
        )
        vector = self._packer.pack(
            graph,
            {
                "total_loss": total_loss,
                "grad_norm": grads.norm,
                "learning_rate": rate,
                "step": step,
                "finite": finite,
                "spike": spike,
                "updated": good,
                **common,
            },
        )
        return vector, sinks


def _check_meta_losses(net: Network, config: Config) -> None:
    """Check the settings for losses on gradients.

    :raises ConfigError: gradients of float16, of which small ones are 0 without loss scaling
    """
    with_loss = [node.path for node in net.plan.all_nodes() if node.layer.has_meta_loss]
    if with_loss and NetworkSettings(config).mixed_precision == "float16":
        raise SettingError(
            "Layer %r: losses on gradients need gradients in float32 or bfloat16, but mixed_precision is 'float16'."
            % with_loss[0]
        )


def _nothing_to_train(net: Network) -> str:
    names = ", ".join(repr(node.name) for node in net.plan.losses)
    if names:
        return "All losses (%s) have the scale 0, so there is nothing to train. Change a 'loss_scale'." % names
    return "The network has no loss, so there is nothing to train. Give a layer the option 'loss'."


def _mean_loss(graph: Lowered, normalized: frozenset[str]) -> Any:
    """Return the sum of the losses, each per frame or sequence, so that it does not depend on the batch size."""
    means = [
        tf.cast(value, "float64")
        / (1.0 if name in normalized else tf.maximum(tf.cast(graph.counts[name], "float64"), 1.0))
        for name, value in graph.losses.items()
    ]
    return tf.add_n(means)
