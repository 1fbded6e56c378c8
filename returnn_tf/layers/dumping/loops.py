"""Where layers that pass on values after a step may be."""

from __future__ import annotations

from returnn_tf.graph.plan_context import PlanContext


def refuse_in_loop(ctx: PlanContext) -> None:
    """Check that the layer is outside of loops, since values are passed on once for each batch.

    :raises ConfigError: it is in a loop
    """
    if ctx.in_step or ctx.loop_dim is not None:
        raise ctx.error("can't be inside of a loop. Put it outside, on the output of the loop or a part of it.")
