"""Layers which run along time, and inside of a loop along its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from returnn_tf.tensor import Data, single_step_dim

if TYPE_CHECKING:
    from returnn_tf.layers.plan_context import PlanContext


def step_or_axis(ctx: "PlanContext", data: Data, desc: Any) -> Optional[int]:
    """The axis of a description, where time without a time axis means the steps of the loop.

    :return: None in a step of the loop: the steps are no axis there, the layer has to carry a state
    :raises ConfigError: no such axis, and not inside of a loop
    """
    if data.time_axis is None and (desc is single_step_dim or desc in ("T", "t", "time", "t?", "T?")):
        if data.loop_axes:
            return data.loop_axes[0]
        if ctx.in_step:
            return None
    return ctx.axis(data, desc)
