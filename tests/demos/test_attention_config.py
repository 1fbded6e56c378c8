"""The attention demo: its network is planned, trained and searched on random lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import returnn_tf
from tests.feeds import random_feed

CONFIG = Path(__file__).parents[2] / "demos" / "digits" / "attention.config"


@pytest.mark.slow
def test_train_and_search() -> None:
    config = returnn_tf.Config.from_file(str(CONFIG))
    net = returnn_tf.Network.from_config(config, train=True)
    feed = random_feed(net.extern_data, batch=3, longest=9)
    trainer = returnn_tf.Trainer(net, config)
    losses = [float(trainer.step(feed, learning_rate=0.005).total_loss) for _ in range(30)]
    assert np.isfinite(losses).all() and losses[-1] < 0.8 * losses[0], "the batch is learned"
    search = returnn_tf.Network.from_config(config, search=True)
    search.set_param_values({name: value for name, value in net.get_param_values().items() if name in search.params})
    out = search.run(feed)
    result = out.layers["decision"]
    assert result.axes == ("B", "T") and (result.value < 11).all()
    assert out.layers["output"].beam_scores.shape == (3, 12)
    assert 0 <= out.errors["decision"] <= feed["classes/size0"].sum() + 3 * 20
