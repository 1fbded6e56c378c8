"""Batch normalisation, for the layer `batch_norm` and for the option ``batch_norm`` that every layer has.

Before behavior version 12 every run changes the running statistics, also an evaluation or a search, batch by batch, and
uses them as changed; they stay so for what follows in the process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from returnn_tf.config.options import at_least, check_options, declared_options, option, probability
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer_plan import BatchNorm
from returnn_tf.graph.option_types import Axes, Init
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.ops.normalize import batch_norm, moments, normalize
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf


@dataclasses.dataclass(eq=False)
class BatchNormOptions:
    """The batch normalisation options."""

    use_shift: bool = option(True, help="whether to add beta")
    use_std: bool = option(True, help="whether to multiply by gamma")
    use_sample: float = option(0.0, help="weight of the running statistics in training, 0 to 1", check=probability)
    force_sample: bool = option(False, help="apply use_sample outside training too, where it is 1 otherwise")
    momentum: Optional[float] = option(
        None, help="weight of the batch in the update (default 0.1, old 0.99)", check=probability
    )
    epsilon: float = option(1e-3, help="constant added to the variance", check=at_least(0))
    update_sample_only_in_training: Optional[bool] = option(
        None, help="keep the running statistics fixed outside training (default since behavior version 12)"
    )
    delay_sample_update: Optional[bool] = option(
        None, help="use the running statistics before their update (default since behavior version 12)"
    )
    param_version: Optional[int] = option(
        None, help="names and shapes of the parameters: 0, 1 or 2 (default 2, before behavior version 12: 0)"
    )
    gamma_init: Init = option(1.0, help="initialiser of gamma")
    beta_init: Init = option(0.0, help="initialiser of beta")
    masked_time: Optional[bool] = option(
        None, help="ignore frames after the end of a sequence; required since behavior version 12"
    )
    axes: Optional[Axes] = option(None, help="the axes of the parameters; only the feature axis is supported")
    fused: Optional[bool] = option(None, help="use the fused kernel", inert="the fastest form is chosen")
    fused_bn: Optional[bool] = option(None, help="use the fused kernel", inert="the fastest form is chosen")

    def planned(self, ctx: PlanContext, data: Data) -> BatchNorm:
        """Fill in the defaults of the behavior version for options that the config omits."""
        new = ctx.behavior_version >= 12
        if self.masked_time is None and new:
            raise ctx.error(
                "batch_norm needs 'masked_time' since behavior version 12: True, so that mean and variance ignore "
                "padded frames, or False."
            )
        version = (2 if new else 0) if self.param_version is None else self.param_version
        if version not in (0, 1, 2):
            raise ctx.error("param_version must be 0, 1 or 2, got %s." % version)
        if self.axes is not None and ctx.axes(data, self.axes) != [data.feature_axis]:
            raise ctx.error("batch_norm is per feature: axes can only be 'F', got %r." % (self.axes,))
        only_in_training, delay = self.update_sample_only_in_training, self.delay_sample_update
        return BatchNorm(
            use_shift=self.use_shift,
            use_std=self.use_std,
            use_sample=self.use_sample,
            force_sample=self.force_sample,
            momentum=(0.1 if new else 0.99) if self.momentum is None else self.momentum,
            epsilon=self.epsilon,
            update_sample_only_in_training=new if only_in_training is None else only_in_training,
            delay_sample_update=new if delay is None else delay,
            param_version=version,
            masked_time=True if self.masked_time is None else self.masked_time,
        )


def declare_batch_norm(ctx: PlanContext, data: Data, opts: BatchNormOptions) -> None:
    """Declare the parameters, for values in this layout."""
    dim = ctx.need_feature(data, "what batch_norm gets")
    norm = ctx.node.batch_norm = opts.planned(ctx, data)
    shape: tuple[Any, ...] = (dim,)
    if norm.param_version != 2:
        shape = tuple(dim if i == data.feature_axis else 1 for i in range(data.rank))
    for name, init in (("mean", 0.0), ("variance", 1.0)):
        ctx.param(norm.param_name(ctx.node.path, name), shape, init, trainable=False)
    if norm.use_std:
        ctx.param(norm.param_name(ctx.node.path, "gamma"), shape, opts.gamma_init)
    if norm.use_shift:
        ctx.param(norm.param_name(ctx.node.path, "beta"), shape, opts.beta_init)


def emit_batch_norm(ctx: EmitContext, x: Any, data: Data) -> Any:
    """Return the values normalised as the layer planned it, and schedule the update of the running statistics."""
    axis, opts = data.feature_axis, ctx.node.batch_norm
    assert axis is not None and opts is not None
    layout = [ctx.size(d) if i == axis else 1 for i, d in enumerate(data.dims)]
    updating = ctx.train or not opts.update_sample_only_in_training
    share = opts.use_sample if ctx.train or opts.force_sample else 1.0
    gamma = tf.reshape(ctx.param(opts.param_name(ctx.node.path, "gamma")), layout) if opts.use_std else None
    beta = tf.reshape(ctx.param(opts.param_name(ctx.node.path, "beta")), layout) if opts.use_shift else None
    y: Any = None
    batch: Sequence[Any] = (None, None)
    if updating or share != 1:
        mask = ctx.masks(data, [i for i in data.dynamic_axes if i != axis]) if opts.masked_time else None
        if ctx.train and share == 0 and axis == data.rank - 1:
            y, *batch = batch_norm(x, mask, gamma, beta, opts.epsilon)
        else:
            batch = moments(x, [i for i in range(data.rank) if i != axis], mask)
    used = []
    for name, of_batch in zip(("mean", "variance"), batch):
        param = opts.param_name(ctx.node.path, name)
        variable = ctx.variable(param) if updating else None
        sample = ctx.param(param) if variable is None else tf.convert_to_tensor(variable)
        updated = sample
        if variable is not None:
            target = tf.stop_gradient(tf.reshape(of_batch, variable.shape))
            updated = sample + (target - sample) * opts.momentum
            ctx.update(lambda v=variable, value=updated: v.assign(value))  # type: ignore[misc]
        sample = tf.reshape(sample if opts.delay_sample_update else updated, layout)
        used.append(_mix(of_batch, sample, share))
    return normalize(x, used[0], used[1], opts.epsilon, gamma, beta) if y is None else y


def _mix(of_batch: Any, sample: Any, share: float) -> Any:
    """Compute ``(1 - share) * of_batch + share * sample``."""
    if share == 1:
        return sample
    return of_batch if share == 0 else of_batch * (1.0 - share) + sample * share


def declare_batch_norm_option(ctx: PlanContext, opts: Any) -> None:
    """Declare the parameters for the option ``batch_norm`` of a layer whose output template is known.

    :param opts: True, or a dict of `BatchNormOptions`
    """
    parsed = _parse(opts)
    if not ctx.node.output.dtype.startswith(("float", "bfloat")):
        raise ctx.error("batch_norm needs a float output, but it is %s." % ctx.node.output)
    declare_batch_norm(ctx, ctx.node.output, parsed)


def apply_batch_norm_option(ctx: EmitContext, x: Any) -> Any:
    """Return the normalised output of a layer."""
    return emit_batch_norm(ctx, x, ctx.output)


def _parse(opts: Any) -> BatchNormOptions:
    """Parse the options.

    :raises ConfigError: unknown or wrong options
    """
    result = BatchNormOptions()
    if isinstance(opts, Mapping):
        check_options(BatchNormOptions, opts, where="option 'batch_norm'")
        infos = declared_options(BatchNormOptions)
        for name, value in opts.items():
            setattr(result, infos[name].attribute, infos[name].taken(value))
    return result
