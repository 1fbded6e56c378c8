"""Losses whose class is in a config and derives from RETURNN's base, as losses of ours."""

from __future__ import annotations

from typing import Any, ClassVar, Optional

from returnn_tf.compat.modules.layers.loss_base import Loss as ConfigLossBase
from returnn_tf.compat.views.layer_view import LayerView
from returnn_tf.config.options import declared_options
from returnn_tf.graph.loss import Loss, LossContext
from returnn_tf.util.lazy_tf import tf


class ConfigLoss(Loss):
    """A loss whose class is in the config."""

    config_class: ClassVar[Any] = None

    def value(self, ctx: LossContext) -> Optional[Any]:
        """Return the sum of what `get_value` of the class returns."""
        return _total(self._instance(ctx).get_value())

    def error(self, ctx: LossContext) -> Optional[Any]:
        """Return the sum of what `get_error` of the class returns."""
        return _total(self._instance(ctx).get_error())

    def _instance(self, ctx: LossContext) -> ConfigLossBase:
        """Return the instance; it is made once for value and error."""
        if "instance" not in ctx.cache:
            infos = declared_options(type(self)).values()
            options = {i.name: getattr(self, i.attribute) for i in infos if i.attribute.startswith("own_")}
            given = {name: value for name, value in options.items() if repr(value) != "(not given)"}
            layer = LayerView(ctx.of_layer, ctx.node)
            loss: ConfigLossBase = self.config_class(base_network=layer.network, **given)
            target = None if ctx.target_node is None else layer.of(ctx.target_node).output
            loss.init(
                output=layer.output,
                output_with_activation=layer.output_before_activation,
                target=target,
                layer=layer,
            )
            ctx.cache["instance"] = loss
        instance: ConfigLossBase = ctx.cache["instance"]
        return instance


def _total(value: Any) -> Optional[Any]:
    """Return the sum of a tensor as a float scalar; None stays."""
    return None if value is None else tf.reduce_sum(tf.cast(value, tf.float32))
