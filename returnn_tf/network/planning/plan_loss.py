"""The losses of layers are planned once the layers are, since their targets may be layers too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from returnn_tf.config.options import declared_options, map_strings
from returnn_tf.graph.loss import LossPlanContext
from returnn_tf.graph.node import LossNode, Node
from returnn_tf.graph.registry import LOSSES
from returnn_tf.network.planning.checks import located
from returnn_tf.network.planning.parse import LayerSpec

if TYPE_CHECKING:
    from returnn_tf.network.planning.builder import NetworkBuilder


def plan_loss(builder: NetworkBuilder, node: Node, spec: LayerSpec) -> None:
    """The loss of a layer: its options, its target, and whether they fit."""
    with located(spec.path, str(spec.cls.class_name), node):
        cls = LOSSES.get(spec.options["loss"], spec.where)
        loss = cls()
        infos = declared_options(cls)
        for name, value in (spec.options.get("loss_opts") or {}).items():
            if infos[name].refs and value is not None:
                value = map_strings(infos[name], value, lambda ref: builder.resolve(ref, spec.where))
            setattr(loss, infos[name].attribute, value)
        target = node.layer.target
        targets = list(target) if isinstance(target, (list, tuple)) else [target]
        target_node = builder.target_node(node, targets[0]) if targets and targets[0] and loss.needs_target else None
        loss.check(LossPlanContext(node, target_node, builder.behavior_version))
        loss_node = LossNode(spec.path, loss, target_node, float(node.layer.loss_scale) * float(loss.scale))
    node.losses.append(loss_node)
    builder.state.losses.append(loss_node)
