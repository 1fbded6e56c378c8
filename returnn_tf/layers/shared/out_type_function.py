"""The option ``out_type`` as a function of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Optional

from returnn_tf.config import ConfigError
from returnn_tf.config.options import declared_options
from returnn_tf.config.user_code import error_in_config
from returnn_tf.graph.plan_context import PlanContext
from returnn_tf.graph.user_views import user_views
from returnn_tf.tensor import Data


def out_type_of_function(
    ctx: PlanContext, function: Callable[..., Any], more: Optional[Mapping[str, Any]] = None
) -> Any:
    """Return what the function returns: a template, or a dict of options.

    It is called with the options of the layer as keywords, ``sources``, ``name`` and ``network``.

    :param more: further keywords
    :raises ConfigError: it fails, or returns something else
    """
    views = user_views()
    options = {
        info.name: value
        for info in declared_options(type(ctx.node.layer)).values()
        for value in [getattr(ctx.node.layer, info.attribute)]
        if value is not info.default and info.name != "out_type"
    }
    try:
        sources, name = [views.planned_layer(node) for node in ctx.node.sources], ctx.node.path.rpartition("/")[2]
        result = function(**{**options, **(more or {}), "sources": sources, "name": name, "network": None})
    except ConfigError:
        raise
    except Exception as exc:  # user code may raise anything
        place = error_in_config(exc)
        raise ctx.error(
            "the function in out_type failed: %s" % (place or "%s: %s" % (type(exc).__name__, exc))
        ) from exc
    result = views.template_of(result)
    if not isinstance(result, (Data, Mapping)):
        raise ctx.error("the function in out_type must return a Data or a dict, got %r." % (result,))
    return result
