"""`Network.plan`: a plan without variables."""

from __future__ import annotations

import returnn_tf

CONFIG = {
    "behavior_version": 21,
    "extern_data": {"data": {"dim": 5}, "classes": {"dim": 3, "sparse": True}},
    "network": {
        "loop": {
            "class": "rec", "from": "data", "unit": {
                "s": {"class": "rnn_cell", "unit": "lstm", "n_out": 4, "from": "data:source"},
                "output": {"class": "copy", "from": "s"},
            },
        },
        "frozen": {"class": "linear", "activation": None, "n_out": 6, "from": "loop", "trainable": False},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "frozen"},
    },
}  # fmt: skip


def test_plan():
    """Parameters with shape and flag, losses and layers can be read, and equal those of the network made from it."""
    plan = returnn_tf.Network.plan(returnn_tf.Config(CONFIG), train=True)
    net = returnn_tf.Network.from_config(returnn_tf.Config(CONFIG), train=True)
    assert {name: tuple(spec.shape) for name, spec in plan.params.items()} == {
        name: tuple(var.shape) for name, var in net.params.items()
    }
    assert plan.params["output/W"].trainable and not plan.params["frozen/W"].trainable
    assert [loss.name for loss in plan.losses] == ["output"]
    assert {"loop", "loop/s", "frozen", "output"} <= set(plan.layers)
    assert plan.layers["output"].output.dim == 3 and plan.train and not plan.search
    assert list(net.plan.params) == list(plan.params)
