"""The graph of the example of every layer class and loss computes what the network does."""

from __future__ import annotations

import numpy as np
import pytest

import returnn_tf
from returnn_tf.compiler.feed import batch_major_order
from returnn_tf.export.meta.graph_builder import GraphBuilder, output_order
from returnn_tf.export.meta.names import op_name
from tests.export.meta_session import MetaSession, inputs
from tests.feeds import random_feed
from tests.layers.examples import CLASSES, example_config


@pytest.mark.long
@pytest.mark.parametrize("mode", ["eval", "train", "search"])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_outputs_and_losses(name: str, mode: str) -> None:
    """Outputs of layers with batch and time axis, and losses, agree with `Network.run` from the same parameters."""
    config = example_config(name)
    plan = returnn_tf.Network.plan(config, train=mode == "train", search=mode == "search", evaluate=mode == "eval")
    builder = GraphBuilder(plan, config, losses=mode != "search")
    builder.emit_network()
    net = returnn_tf.Network(plan, config)
    values = net.get_param_values()
    feed = random_feed(net.extern_data, batch=3)
    if "ctc" in str(plan) or any(loss.loss.class_name in ("ctc", "fast_bw") for loss in plan.losses):
        feed["classes"], feed["classes/size0"] = feed["classes"][:, :1], np.ones([3], "int32")
    expected = net.run(feed, train=False)
    with MetaSession(builder.meta_graph()) as session:
        for param, value in values.items():
            session.write(op_name(param) + ":0", value)
        fed = inputs(feed)
        if builder.states.epoch_step is not None:
            fed["epoch_step"] = 0
        for path, result in expected.layers.items():
            if path in builder.outputs:
                data = plan.by_path()[path].output
                now = batch_major_order(data)
                wanted = result.value.transpose([now.index(axis) for axis in output_order(data)])
                (found,) = session.run([builder.outputs[path]["tensor"][: -len(":0")]], fed)
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        for loss, value in expected.losses.items() if mode != "search" else ():
            (found,) = session.run(["losses/%s/loss" % op_name(loss)], fed)
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
