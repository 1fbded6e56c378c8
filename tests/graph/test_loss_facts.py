"""What the compiler knows about a loss class, it knows from the class."""

from __future__ import annotations

import pytest

from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.graph.loss import Loss
from returnn_tf.graph.registry import register_loss


@register_loss("plugin_blank")
class PluginBlankLoss(Loss):
    """Has a blank label."""

    has_blank = True


@pytest.mark.parametrize("loss,size", [("ce", 5), ("ctc", 6), ("plugin_blank", 6)])
def test_a_loss_with_a_blank_label_makes_room_for_it(loss: str, size: int) -> None:
    network = {"output": {"class": "softmax", "from": "data", "loss": loss, "target": "classes"}}
    extern_data = {"data": {"dim": 4}, "classes": {"dim": 5, "sparse": True}}
    plan = plan_from_config(Config({"behavior_version": 21, "extern_data": extern_data, "network": network}))
    assert plan.outputs["output"].output.dim == size
