"""`batch_norm`, as a layer and as the option of any layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from returnn_tf.layers.emit_context import EmitContext
    from returnn_tf.layers.plan_context import PlanContext


def declare_option(ctx: "PlanContext", opts: Any) -> None:
    """The parameters for the option ``batch_norm`` of a layer, whose output template is known."""
    raise ctx.error("batch_norm is not there yet")


def apply_option(ctx: "EmitContext", x: Any, opts: Any) -> Any:
    """The layer output normalised."""
    raise AssertionError("batch_norm")
