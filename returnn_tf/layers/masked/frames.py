"""The axis of the frames that `masked_computation` selects from."""

from __future__ import annotations

from typing import Any, Optional

from returnn_tf.graph.layer import Node
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.layers.shared.loop_axis import means_steps
from returnn_tf.tensor import Dim


def own_frames(ctx: PlanContext, layer: Any) -> Optional[Dim]:
    """Return the dim that in_spatial_dim names; None if it means the steps of a loop, or is not given.

    :raises ConfigError: only one of in_spatial_dim and out_spatial_dim is given
    """
    dim: Optional[Dim] = layer.in_spatial_dim
    if (dim is None) != (layer.out_spatial_dim is None) and layer.masked_from is None:
        raise ctx.error(
            "in_spatial_dim and out_spatial_dim belong together: the axis with the frames, and the new dim of the "
            "selected ones. Give both."
        )
    mask = layer.mask.output if isinstance(layer.mask, Node) else None
    if dim is None or mask is None or means_steps(ctx, mask, dim):
        return None
    return dim


def time_of_source(ctx: PlanContext) -> Dim:
    """Return the time dim of the source.

    :raises ConfigError: there is none
    """
    if not ctx.node.sources:
        raise ctx.error("without a source it needs in_spatial_dim and out_spatial_dim here, outside of loops.")
    frames = ctx.single_source().time_dim
    if frames is None:
        raise ctx.error("the source %s has no time axis with frames to select." % ctx.single_source())
    return frames
