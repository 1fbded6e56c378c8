"""From a loss to new parameter values: gradients, their operations, accumulation, optimizers, extra updates.

The order of operations per parameter: gradient (with the ``maximize_grad_norm`` term), accumulation, noise, clipping by
value, by norm, by average norm and by global norm, NaN and Inf filter, clip to zero; then the decoupled constraints,
the optimizer and ``extra_updates``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from numpy.typing import NDArray

from returnn_tf.compiler.lower import Lowered
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import RateError, did_you_mean
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.config.settings.update import UpdateSettings
from returnn_tf.engine.update import dynamic_learning_rate, gradients
from returnn_tf.engine.update import options as update_options
from returnn_tf.engine.update.gradients import Gradients, MetaGradients
from returnn_tf.engine.update.optimizers import Optimizer, create_optimizer
from returnn_tf.engine.update.options import UpdateOptions
from returnn_tf.graph.after_step.meta_loss import MetaLoss
from returnn_tf.graph.check_numerics import ALL, checked_finite
from returnn_tf.graph.check_numerics import option as check_numerics_option
from returnn_tf.logging.log import log
from returnn_tf.native.portable import twice_differentiable_ops
from returnn_tf.ops.gradients import derivatives
from returnn_tf.util.lazy_tf import tf


@dataclass
class _Group:
    """Parameters with the same optimizer dict and the same steps per update: one optimizer instance."""

    optimizer: Optimizer
    interval: int  # steps per update
    names: list[str] = field(default_factory=list)


class Updater:
    """Options and state of the update; its methods emit ops while a ``tf.function`` is traced.

    :param net: Network; every trainable floating point parameter of it is updated
    :raises ConfigError: wrong options, of the config or of ``updater_opts`` of a layer
    """

    def __init__(self, net: Network, config: Config) -> None:
        self._params: Mapping[str, Any] = net.stored_params
        self._variables: dict[str, Any] = {
            name: var for name, var in net.trainable_params.items() if var.dtype.is_floating
        }
        default = update_options.from_config(config)
        self._default = default
        self._options = update_options.options_of_params(net.plan, default, self._variables)
        self._reset_every = UpdateSettings(config).reset_updater_vars_mod_step
        self._decouple = UpdateSettings(config).decouple_constraints
        self._rate = dynamic_learning_rate.from_config(config, net)
        self._seed = TrainingSettings(config).random_seed
        self._check_numerics = check_numerics_option(config) == ALL
        self._extra_updates = _extra_updates(UpdateSettings(config).extra_updates or {}, net.stored_params)
        self._groups = _groups(self._options, UpdateSettings(config).optimizer_epsilon)
        for index, group in enumerate(self._groups):
            group.optimizer.build({name: self._variables[name] for name in group.names}, "optimizer_%i" % index)
        if any(group.optimizer.instead_of_this(hidden_matrix=False) for group in self._groups):
            texts = ["%s for %s" % (group.optimizer.name, update_options.listed(group.names)) for group in self._groups]
            log.write(3, "Optimizers: %s" % "; ".join(texts))
        self._accumulated: dict[str, Any] = {
            name: tf.Variable(tf.zeros_like(self._variables[name]), trainable=False, name="accum_grad")
            for group in self._groups
            if group.interval > 1
            for name in group.names
        }
        #: whether the gradients of all parameters are filtered, so that a step with NaN or Inf may be done
        self.tolerates_nonfinite = bool(self._options) and all(
            options.tolerates_nonfinite() for options in self._options.values()
        )

    def state(self) -> dict[str, Any]:
        """Return the variables needed for an exact resume, by name: slots, counters, accumulated gradients."""
        result: dict[str, Any] = {}
        for group in self._groups:
            result.update(group.optimizer.state())
        result.update({"%s/accum_grad" % name: var for name, var in self._accumulated.items()})
        return result

    @property
    def interval(self) -> int:
        """Return the steps per update of parameters without options of their own."""
        return max(self._default.accum_grad_multiple_step, 1)

    @property
    def averaged(self) -> str:
        """Return the class of an optimizer that keeps averages of its parameters; "" if there is none."""
        return update_options.averaging_class(self._options)

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return the parameters that are updated, by name."""
        return self._variables

    def averages(self) -> dict[str, Any]:
        """Return the averages that optimizers keep, by the names of their parameters."""
        return {
            name: value for group in self._groups for name, value in group.optimizer.averages(self._variables).items()
        }

    def state_of_tf1(self, stored: Mapping[str, NDArray[Any]], step: int) -> dict[str, NDArray[Any]]:
        """Return the part of this state that a checkpoint of TensorFlow 1 has, by our names.

        :param stored: all of its values by name
        :param step: number of steps done
        """
        result: dict[str, NDArray[Any]] = {}
        for group in self._groups:
            result.update(group.optimizer.state_of_tf1(stored, step // group.interval))
        return result

    def unapplied(self, step: int) -> tuple[int, int]:
        """Return the number of steps with accumulated, unapplied gradients, and the steps per update.

        :param step: number of steps done
        """
        return max((step % group.interval, group.interval) for group in self._groups) if self._groups else (0, 1)

    def reset_before(self, number: int) -> bool:
        """Reset the state if it is due before a step, see ``reset_updater_vars_mod_step``; return whether it was.

        :param number: of the step within its epoch, from 0
        """
        if not self._reset_every or number % self._reset_every:
            return False
        for group in self._groups:
            group.optimizer.reset()
        for variable in self._accumulated.values():
            variable.assign(tf.zeros_like(variable))
        return True

    def learning_rate(self, rate: Any, step: Any) -> Any:
        """Return the rate of this step (float32 scalar) by ``dynamic_learning_rate``, given that of the epoch."""
        return self._rate(rate, step)

    def total_loss(self, graph: Lowered) -> Any:
        """Return the objective to differentiate: scaled losses, plus the constraints unless decoupled."""
        return graph.objective if self._decouple else graph.total_loss

    def gradients(self, graph: Lowered, loss_factor: Any = None) -> Gradients:
        """Return gradients of a lowered training graph with respect to all parameters which influence it.

        :param loss_factor: factor on the loss while they are computed, see `LossScaling`
        """
        names, variables = list(self._variables), list(self._variables.values())
        loss = self.total_loss(graph)
        if loss_factor is not None:
            loss *= tf.cast(loss_factor, loss.dtype)
        with twice_differentiable_ops(bool(self._default.maximize_grad_norm)):
            found = _gradients(loss, names, variables)
        if loss_factor is not None:
            found = {name: _divided(grad, loss_factor) for name, grad in found.items()}
        found = self._with_norm_reward(found)
        raw = {name: gradients.dense(grad) for name, grad in found.items()}
        if self._check_numerics:
            raw = {name: checked_finite(grad, "the gradient of parameter %r" % name) for name, grad in raw.items()}
        constraints: dict[str, Any] = {}
        if self._decouple and tf.is_tensor(graph.constraints):
            constraints = _gradients(graph.constraints, names, variables)
        norm = gradients.fused_global_norm([grad for _, grad in sorted(raw.items())])
        return Gradients(raw=raw, norm=norm, constraints=constraints)

    def meta_gradients(self, graph: Lowered, share: Callable[[MetaLoss, Any], tuple[Any, float]]) -> MetaGradients:
        """Return the gradients of the losses on the gradient at layers.

        :param graph: lowered training graph
        :param share: (loss, count) -> the factor on the loss that makes it the share of this process, and a further one
            in its gradient
        """
        losses = graph.lowering.after_step.meta_losses
        if not losses:
            return MetaGradients({}, {}, {})
        with twice_differentiable_ops():
            found = derivatives(self.total_loss(graph), [loss.point for loss in losses])
        values, counts, total = {}, {}, tf.zeros([])
        for loss, grad in zip(losses, found):
            grad = tf.zeros_like(loss.point) if grad is None else gradients.dense(grad)
            counts[loss.name] = tf.size(grad)
            factor, weight = share(loss, counts[loss.name])
            values[loss.name] = tf.math.multiply_no_nan(tf.cast(loss.value(grad), "float32"), factor)
            total += loss.scale * weight * values[loss.name]
        names = list(self._variables)
        grads = _gradients(total, names, [self._variables[name] for name in names])
        return MetaGradients({name: gradients.dense(grad) for name, grad in grads.items()}, values, counts)

    def apply_meta(self, grads: Mapping[str, Any], learning_rate: Any) -> None:
        """Emit the second update of a step by the gradients of `meta_gradients`, without clipping or accumulation."""
        for group in self._groups:
            pairs = [(name, grads[name], self._variables[name]) for name in group.names if name in grads]
            if pairs:
                group.optimizer.apply(pairs, learning_rate)

    def apply(self, grads: Gradients, learning_rate: Any, step: Any, when: Any) -> None:
        """Emit the update of all parameters.

        :param grads: of this step
        :param learning_rate: scalar, from `learning_rate`
        :param step: int64 scalar, global train step before it is increased
        :param when: bool scalar, whether to update; else all variables keep their values
        """
        if self._accumulated or self._extra_updates or grads.constraints:

            def changed() -> Any:
                self._apply(grads, learning_rate, step, True)
                return tf.constant(True)

            tf.cond(when, changed, lambda: tf.constant(False))
        else:  # nothing but the optimizers changes variables, and these ask by themselves
            self._apply(grads, learning_rate, step, when)

    def _apply(self, grads: Gradients, learning_rate: Any, step: Any, when: Any) -> None:
        summed = dict(grads.raw)
        for name, accumulated in self._accumulated.items():
            if name in summed:
                accumulated.assign_add(summed[name])
                summed[name] = accumulated.read_value()
        norms = self._norms(grads, summed)
        for group in self._groups:
            names = [name for name in group.names if name in summed]
            if not names:
                continue
            update = self._update_function(group, names, summed, grads.constraints, norms, learning_rate, step, when)
            if group.interval > 1:
                tf.cond(tf.equal(step % group.interval, group.interval - 1), update, lambda: tf.constant(False))
            else:
                update()
        for name, function in self._extra_updates.items():
            if name not in summed:  # nothing else changes it
                function(self._params[name])

    def _update_function(
        self,
        group: _Group,
        names: list[str],
        summed: Mapping[str, Any],
        constraints: Mapping[str, Any],
        norms: Mapping[Optional[str], Any],
        learning_rate: Any,
        step: Any,
        when: Any,
    ) -> Callable[[], Any]:
        seed = tf.stack([tf.constant(self._seed, "int32"), tf.cast(step % 0x7FFFFFFF, "int32")])

        def update() -> Any:
            pairs: list[tuple[str, Any, Any]] = []
            clips: dict[Any, Any] = {}  # one factor for all parameters with the same norm and limit
            by_name: dict[str, Any] = {}
            for name in names:
                options, dtype = self._options[name], summed[name].dtype
                tag, limit = options.gradient_clip_global_norm_tag, options.gradient_clip_global_norm
                if limit and (tag, limit, dtype) not in clips:
                    clips[tag, limit, dtype] = gradients.clip_factor(norms[tag], limit, dtype)
                by_name[name] = clips.get((tag, limit, dtype))
            factor = next(iter(clips.values())) if self._clips_last(names, by_name.values()) else None
            for name in names:
                clip, options = by_name[name] if factor is None else None, self._options[name]
                grad = gradients.process(summed[name], options, name=name, norm=norms[None], clip=clip, seed=seed)
                pairs.append((name, grad, self._variables[name]))
            for name in names:
                if name in constraints:
                    self._variables[name].assign_sub(gradients.dense(constraints[name]))
            group.optimizer.apply(pairs, learning_rate, when, factor)
            for name in names:
                if name in self._accumulated:
                    self._accumulated[name].assign(tf.zeros_like(self._accumulated[name]))
                if name in self._extra_updates:
                    self._extra_updates[name](self._variables[name])
            return tf.constant(True)

        return update

    def _clips_last(self, names: Sequence[str], clips: Collection[Any]) -> bool:
        """Return whether gradients have one factor by the global norm, float32, and no filter comes after it.

        :param names: parameters of a group
        :param clips: their factors, None where there is none
        """
        first = next(iter(clips))
        return (
            first is not None
            and first.dtype == tf.float32
            and all(clip is first for clip in clips)
            and not any(self._options[name].tolerates_nonfinite() for name in names)
        )

    def _norms(self, grads: Gradients, summed: Mapping[str, Any]) -> dict[Optional[str], Any]:
        """Return the global norm by tag; None stands for all parameters."""
        norms: dict[Optional[str], Any] = {
            None: gradients.fused_global_norm(list(summed.values())) if self._accumulated else grads.norm
        }
        for options in self._options.values():
            tag = options.gradient_clip_global_norm_tag
            if tag not in norms:
                norms[tag] = gradients.fused_global_norm(
                    [grad for name, grad in summed.items() if tag in self._options[name].tags]
                )
        return norms

    def _with_norm_reward(self, grads: dict[str, Any]) -> dict[str, Any]:
        """Add the gradient of ``- maximize_grad_norm * (L2 norm of the gradients of all parameters)``."""
        factor = self._default.maximize_grad_norm
        if not factor:
            return grads
        names = list(grads)
        norm = gradients.global_norm([gradients.dense(grads[name]) for name in names])
        extra = _gradients(-factor * norm, names, [self._variables[name] for name in names])
        return {name: tf.add(grads[name], extra[name]) if name in extra else grads[name] for name in names}


def _gradients(loss: Any, names: list[str], variables: list[Any]) -> dict[str, Any]:
    """Return the gradients by name, of the variables that have one, in the order in which their ops were made."""
    if not variables:
        return {}
    found = {name: grad for name, grad in zip(names, derivatives(loss, variables)) if grad is not None}
    position = {op: index for index, op in enumerate(tf.compat.v1.get_default_graph().get_operations())}
    return dict(sorted(found.items(), key=lambda item: position[_op_of(item[1])]))


def _op_of(grad: Any) -> Any:
    """Return the op that computes a gradient, or the numbers of one of selected rows."""
    return grad.values.op if isinstance(grad, tf.IndexedSlices) else grad.op


def _divided(grad: Any, factor: Any) -> Any:
    """Return the gradient divided by a factor; one of selected rows stays in this form."""
    inverse = 1.0 / tf.cast(factor, grad.dtype)
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(grad.values * inverse, grad.indices, grad.dense_shape)
    return grad * inverse


def _groups(options: Mapping[str, UpdateOptions], epsilon: Optional[float]) -> list[_Group]:
    groups: dict[Any, _Group] = {}
    for name, opts in options.items():
        interval = max(opts.accum_grad_multiple_step, 1)
        key = (repr(sorted(opts.optimizer.items())), interval)
        if key not in groups:
            where = "optimizer of parameter %r" % name
            optimizer = create_optimizer(dict(opts.optimizer), where=where, default_epsilon=epsilon)
            groups[key] = _Group(optimizer=optimizer, interval=interval)
        groups[key].names.append(name)
    return list(groups.values())


def _extra_updates(given: Any, params: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    if not isinstance(given, dict):
        raise RateError("extra_updates must be a dict from parameter name to function, not %r." % (given,))
    for name, function in given.items():
        if name not in params:
            raise RateError("extra_updates: no parameter %r. %s" % (name, did_you_mean(name, params)))
        if not callable(function):
            raise RateError("extra_updates: the value of %r must be a function of the variable." % name)
    return dict(given)
