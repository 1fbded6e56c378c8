"""Checks that the source of a layer is of a type that it computes with."""

from __future__ import annotations

from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.tensor import Data


def need_numbers(ctx: PlanContext, data: Data, what: str, *, floats: bool = False) -> None:
    """Check that the source holds numbers.

    :param what: what needs them, e.g. "a sum"
    :param floats: whether integers are not enough
    :raises ConfigError: they are bools or strings, or integers where floats are needed
    """
    if data.unknown or data.sparse:
        return
    if data.dtype in ("bool", "string") or (floats and data.dtype.startswith(("int", "uint"))):
        raise ctx.error(
            "%s needs %s, but the source is %s. Cast it by a layer of class 'cast'."
            % (what, "floats" if floats else "numbers", data)
        )
