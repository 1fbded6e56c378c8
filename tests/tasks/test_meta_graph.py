"""The graph beside the checkpoints of a training fits them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import returnn_tf
from returnn_tf.tasks.meta_graph import meta_graph
from tests.export.meta_session import MetaSession, inputs
from tests.export.test_meta import BLSTM, config_of, feed_of


def test_graph_of_a_training(tmp_path):
    """It is for inference: dropout is off; it needs no library."""
    network = {**BLSTM, "output": {**BLSTM["output"], "dropout": 0.5}}
    net = returnn_tf.Network.from_config(config_of(network), train=True)
    returnn_tf.save_checkpoint(net, str(tmp_path / "net.001"))
    meta = tf.compat.v1.MetaGraphDef.FromString(meta_graph(net.plan, net.config))
    assert not [node.op for node in meta.graph_def.node if node.op.startswith("Rtf")]
    feed = feed_of()
    with MetaSession(meta, str(tmp_path / "net.001")) as session:
        (output,) = session.run(["output/output_batch_major"], inputs(feed))
    expected = net.run(feed, train=False)
    np.testing.assert_allclose(output[0], expected.layers["output"].value[0], atol=1e-5)
