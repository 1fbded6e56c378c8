"""`specaugment`: stretches of time and bands of features set to a constant in training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Optional, Union

from returnn_tf.config.options import at_least, count_or_share, finite, option, probability
from returnn_tf.graph.emit_context import EmitContext
from returnn_tf.graph.layer import Planned
from returnn_tf.graph.layer_plan import LayerPlan
from returnn_tf.graph.option_types import Axis
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.registry import register_layer
from returnn_tf.ops.frames.shape import expand_at, transpose
from returnn_tf.tensor import Data
from returnn_tf.util.lazy_tf import tf

#: A number (int) or a share of the length of the axis (float).
Amount = Union[int, float]


def check_amounts(value: Any) -> Optional[str]:
    """Check a number of masks, or the smallest and the largest one; see `count_or_share`."""
    if not isinstance(value, (list, tuple)):
        return count_or_share(value)
    if len(value) != 2:
        return "must be a number, or [smallest, largest]"
    low, high = value
    if type(low) is type(high) and low > high:
        return "must have the smallest number first"
    return count_or_share(low) or count_or_share(high)


def check_steps(value: Optional[Mapping[int, float]]) -> Optional[str]:
    """Check factors by training step; None passes."""
    if value is None:
        return None
    good = 0 in value and all(step >= 0 and 0 <= factor <= 1 for step, factor in value.items())
    return None if good else "must be a dict from steps to factors from 0 to 1, with step 0, e.g. {0: 0.5, 2000: 1.0}"


@dataclasses.dataclass(frozen=True, eq=False)
class SpecAugmentPlan(LayerPlan):
    """The plan of `SpecAugmentLayer`.

    :param time: the axis of the stretches of time; None: there are none
    :param features: the axis of the bands; None: there are none
    """

    time: Optional[int]
    features: Optional[int]


@register_layer("specaugment")
class SpecAugmentLayer(Planned[SpecAugmentPlan]):
    """SpecAugment in training, else the identity (Park et al. 2019, arXiv:1904.08779).

    A mask of ``w`` entries, ``w`` uniform in 0, 1, ..., ``time_mask_size``, begins at an entry that is uniform among
    those from which it fits into the sequence; masks may overlap. The bands of features are drawn in the same way from
    all features. With ``time_warp`` a frame ``c``, uniform in the sequence with this distance from its ends, is first
    moved by ``d``, uniform from -time_warp to time_warp, and the frames on both sides are interpolated linearly: the
    input at ``t c / (c + d)`` for ``t <= c + d``, and likewise behind.

    Each sequence has its own masks, others in each training step; they follow from the seed of the network and the
    step. The defaults are the policy LD of the paper without the warping: up to 27 of 80 features, up to 100 frames.
    With shares the masks adapt to the length (Park et al. 2020, arXiv:1912.05533).

    Parameters: none. Lengths: unchanged; masks end within the sequence.

    Example::

        network = {
            "masked": {"class": "specaugment", "time_masks": [1, 2], "time_mask_size": 3, "feature_mask_size": 2,
                "from": "data"},
            "output": {"class": "linear", "activation": "tanh", "n_out": 3, "from": "masked"}}
    """

    keeps_features = True

    time_masks: Union[float, list[float]] = option(
        2, check=check_amounts, help="masks over time: a number, a share of the frames (float), or [smallest, largest]"
    )
    time_mask_size: float = option(
        100, check=count_or_share, help="most frames of a mask: a number, or a share of the frames (float)"
    )
    max_time_share: float = option(1.0, check=probability, help="most frames of a mask as a share of the sequence")
    feature_masks: Union[float, list[float]] = option(2, check=check_amounts, help="masks over features: as time_masks")
    feature_mask_size: float = option(
        27 / 80, check=count_or_share, help="most features of a mask: a number, or a share of the features (float)"
    )
    time_warp: int = option(0, check=at_least(0), help="most frames by which time is warped")
    mask_value: float = option(
        0.0, check=finite, help="value of masked entries: the mean that the features should have"
    )
    scale_by_step: Optional[dict[int, float]] = option(
        None,
        check=check_steps,
        help="training step -> factor of the numbers of masks and of time_warp from then on, e.g. {0: 0.5, 2000: 1.0}",
    )
    axis: Axis = option("T", help="the axis of time")
    feature_axis: Axis = option("F", help="the axis of the features")

    def template(self, ctx: PlanContext) -> SpecAugmentPlan:
        """Return the template of the source."""
        data = ctx.single_source()
        if data.sparse or not data.dtype.startswith("float"):
            raise ctx.error("masks and interpolates features, but the source is %s. Give it floats." % data)
        over_time = bool(_largest(self.time_masks) or self.time_warp)
        time = ctx.axis(data, self.axis) if over_time else None
        features = ctx.axis(data, self.feature_axis) if _largest(self.feature_masks) else None
        if features is not None:
            if features == time:
                raise ctx.error("axis and feature_axis are the same, %s." % data.dims[features])
            size = ctx.need_static(data.dims[features], "feature_axis")
            if isinstance(self.feature_mask_size, int) and self.feature_mask_size > size:
                raise ctx.error(
                    "feature_mask_size is %d, but there are %d features (%s)."
                    % (self.feature_mask_size, size, data.dims[features])
                )
        return SpecAugmentPlan(data, time, features)

    def emit(self, ctx: EmitContext) -> Any:
        """Emit the warping, and one where op for all masks; no op outside of training."""
        x = ctx.source()
        if not ctx.train:
            return x
        factor = None if self.scale_by_step is None else _factor(self.scale_by_step, ctx.step)
        data, masks = ctx.output, []
        if self.plan.time is not None:
            lens = self._lens(ctx, self.plan.time)
            if self.time_warp:
                x = self._warped(ctx, x, lens, factor)
            if _largest(self.time_masks):
                most = tf.minimum(_amount(self.time_mask_size, lens), _share(self.max_time_share, lens))
                mask = self._mask(ctx, self.plan.time, lens, self.time_masks, most, factor, "time")
                masks.append(mask)
        if self.plan.features is not None:
            sizes = self._lens(ctx, self.plan.features)
            most = _amount(self.feature_mask_size, sizes)
            masks.append(self._mask(ctx, self.plan.features, sizes, self.feature_masks, most, factor, "features"))
        if not masks:
            return x
        masked = masks[0] if len(masks) == 1 else tf.logical_or(*masks)
        return tf.where(masked, tf.constant(self.mask_value, data.dtype), x)

    def _lens(self, ctx: EmitContext, axis: int) -> Any:
        """Return the lengths of an axis, int32 [batch]; [1] if there is no batch axis."""
        data = ctx.output
        lens = ctx.lens(data.dims[axis])
        batch = 1 if data.batch_axis is None else ctx.size(data.dims[data.batch_axis])
        return tf.broadcast_to(lens, tf.stack([batch]))

    def _mask(
        self, ctx: EmitContext, axis: int, lens: Any, count: Any, most: Any, factor: Optional[Any], name: str
    ) -> Any:
        """Return where an axis is masked: bool, with size 1 on all other axes but batch.

        :param lens: int32 [batch]
        :param count: the number of masks, as the option has it
        :param most: entries of a mask, int32 [batch]
        :param factor: of the number of masks
        """
        data = ctx.output
        size = ctx.size(data.dims[axis])
        low, high = count if isinstance(count, (list, tuple)) else (count, count)
        most_masks = high if isinstance(high, int) else _share(high, size)  # no value decides about a shape, for XLA
        draws = tf.random.stateless_uniform(tf.stack([tf.shape(lens)[0], most_masks, 2]), ctx.seed(name))
        width = _up_to(draws[..., 0], most[:, None])
        begin = _up_to(draws[..., 1], lens[:, None] - width)
        fewest, highest = _amount(low, lens), _amount(high, lens)
        if low != high:
            draw = tf.random.stateless_uniform(tf.shape(lens), ctx.seed(name + "/count"))
            highest = fewest + _up_to(draw, tf.maximum(highest - fewest, 0))
        if factor is not None:
            highest = tf.cast(tf.round(tf.cast(highest, tf.float32) * factor), tf.int32)
        width = tf.where(tf.range(most_masks)[None, :] < highest[:, None], width, 0)
        entry = tf.range(size)
        masked = (entry >= begin[..., None]) & (entry < (begin + width)[..., None])
        return _in_layout(tf.reduce_any(masked, axis=1), data, axis)

    def _warped(self, ctx: EmitContext, x: Any, lens: Any, factor: Optional[Any]) -> Any:
        """Return the input with time warped around a frame of each sequence.

        :param lens: of the sequences, int32 [batch]
        :param factor: of the distance
        """
        data, time = ctx.output, self.plan.time
        assert time is not None
        front = [time] if data.batch_axis is None else [data.batch_axis, time]
        order = [*front, *(axis for axis in range(data.rank) if axis not in front)]
        x = transpose(x, order)
        x = x[None] if data.batch_axis is None else x
        last = tf.cast(tf.maximum(lens - 1, 0), tf.float32)
        distance = tf.minimum(self.time_warp * (1.0 if factor is None else factor), tf.floor(last / 2))
        draws = tf.random.stateless_uniform(tf.stack([2, tf.shape(lens)[0]]), ctx.seed("warp"))
        centre = distance + draws[0] * (last - 2 * distance)
        x = _interpolated(x, _warped_positions(tf.shape(x)[1], lens, centre, (2 * draws[1] - 1) * distance))
        x = x[0] if data.batch_axis is None else x
        return transpose(x, [order.index(axis) for axis in range(data.rank)])


def _largest(count: Any) -> Any:
    """Return the largest number of masks that an option allows, or the largest share."""
    return count[1] if isinstance(count, (list, tuple)) else count


def _share(share: float, lens: Any) -> Any:
    """Return a share of lengths, int32, rounded down."""
    return tf.cast(tf.floor(share * tf.cast(lens, tf.float32)), tf.int32)


def _amount(amount: Amount, lens: Any) -> Any:
    """Return an amount, at most the lengths where it counts entries: int32 [batch]."""
    return tf.fill(tf.shape(lens), amount) if isinstance(amount, int) else _share(amount, lens)


def _up_to(draws: Any, most: Any) -> Any:
    """Return whole numbers from 0 to ``most``, int32, for numbers from 0 to below 1."""
    return tf.minimum(tf.cast(draws * tf.cast(most + 1, tf.float32), tf.int32), most)


def _in_layout(mask: Any, data: Data, axis: int) -> Any:
    """Return a mask [batch, entries] with the axes of the data, size 1 on all but these two."""
    batch = data.batch_axis
    if batch is None:
        return expand_at(mask[0], [i for i in range(data.rank) if i != axis])
    mask = tf.transpose(mask) if batch > axis else mask
    return expand_at(mask, [i for i in range(data.rank) if i not in (axis, batch)])


def _factor(by_step: Mapping[int, float], step: Any) -> Any:
    """Return the factor of the last step that has been reached, float32 scalar."""
    steps = sorted(by_step)
    reached = tf.reduce_sum(tf.cast(tf.constant(steps, tf.int64) <= step, tf.int32)) - 1
    return tf.gather(tf.constant([by_step[s] for s in steps], tf.float32), reached)


def _warped_positions(size: Any, lens: Any, centre: Any, shift: Any) -> Any:
    """Return which position of the input each frame of the output shows: float32 [batch, size].

    :param lens: int32 [batch]; frames behind stay where they are
    :param centre: position that is moved, float32 [batch]
    :param shift: by so many frames
    """
    frame = tf.range(size)[None, :]
    t = tf.cast(frame, tf.float32)
    last = tf.cast(lens - 1, tf.float32)[:, None]
    centre, moved = centre[:, None], (centre + shift)[:, None]
    before = t * tf.math.divide_no_nan(centre, moved)
    behind = centre + (t - moved) * tf.math.divide_no_nan(last - centre, last - moved)
    return tf.where(frame < lens[:, None], tf.clip_by_value(tf.where(t <= moved, before, behind), 0.0, last), t)


def _interpolated(x: Any, positions: Any) -> Any:
    """Return frames between those of x [batch, time, ...], at positions float32 [batch, time] of 0 to time - 1."""
    first = tf.floor(positions)
    weight = tf.cast(positions - first, x.dtype)
    weight = expand_at(weight, range(2, x.shape.rank))
    at = tf.cast(first, tf.int32)
    after = tf.minimum(at + 1, tf.shape(x)[1] - 1)
    return (1 - weight) * tf.gather(x, at, batch_dims=1) + weight * tf.gather(x, after, batch_dims=1)
