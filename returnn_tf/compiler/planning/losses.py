"""Planning of losses, after the layers, since their targets may be layers too."""

from __future__ import annotations

from returnn_tf.compiler.planning.checks import located
from returnn_tf.compiler.planning.results import Result
from returnn_tf.config.errors import TargetError
from returnn_tf.config.option_values import map_strings
from returnn_tf.config.options import declared_options
from returnn_tf.graph.loss import LossNode, LossPlanContext
from returnn_tf.graph.registry import LOSSES
from returnn_tf.tensor import SEQ_TAG


def plan_loss(result: Result, *, train: bool) -> LossNode:
    """Plan the loss of a layer: its options, its target, and whether they fit."""
    planner, node, spec = result.planner, result.node, result.spec
    with located(spec.path, str(spec.cls.class_name), node):
        cls = LOSSES.get(spec.options["loss"], spec.where)
        loss = cls()
        infos = declared_options(cls)
        if node.output.dtype.startswith("complex"):
            raise TargetError("the loss %r needs real numbers, not %s." % (spec.options["loss"], node.output))
        for name, value in (spec.options.get("loss_opts") or {}).items():
            if infos[name].refs and value is not None:
                value = map_strings(infos[name], value, lambda ref: planner.resolve(ref, spec.where))
            setattr(loss, infos[name].attribute, infos[name].taken(value))
        targets = node.layer.target_names
        target_node = None
        if loss.needs_target or (loss.takes_target and spec.options.get("target")):
            if not targets or not targets[0]:
                raise TargetError(
                    "the loss %r needs the option 'target': a data key or a layer." % spec.options["loss"]
                )
            target_node = planner.target_node(node, targets[0])
        found = loss.check(LossPlanContext(node, target_node, planner.semantics, train))
        scale = 1.0 if node.layer.loss_scale is None else node.layer.loss_scale
        seq_tags = planner.extern_node(SEQ_TAG) if loss.needs_seq_tags else None
        return LossNode(spec.path, loss, target_node, node, float(scale) * float(loss.scale), seq_tags, found)
