"""Where layers that pass on values after a step may be."""

from __future__ import annotations

from returnn_tf.graph.plan_context import PlanContext


def refuse_in_step(ctx: PlanContext) -> None:
    """Check that the layer is computed once for each batch, on all steps of the loops around it.

    :raises ConfigError: it is in the step of a loop
    """
    if ctx.in_step:
        raise ctx.error(
            "can't run step by step in a loop, as it takes the values of all steps at once. Let no 'prev:' depend on "
            "it, and no optimize_move_layers_out = False keep it in the loop; or put it outside, on the output of the "
            "loop or a part of it."
        )
