"""The step by the public API of returnn_tf; with RETURNN_TF_NATIVE=0 its form in plain TensorFlow."""

from __future__ import annotations

import os
from typing import Any, Callable

from rows import LABELS, RATE, Row, serve

import returnn_tf
from returnn_tf.util.lazy_tf import tf


def make_step(row: Row) -> Callable[[], Any]:
    """Return a whole training step with Adam."""
    network, source = {}, "data"
    for layer in range(row.layers):
        names = ["fw%d" % layer, "bw%d" % layer][: 2 if row.bidirectional else 1]
        for name, direction in zip(names, (1, -1)):
            network[name] = {
                "class": "rec",
                "unit": row.unit,
                "n_out": row.hidden,
                "direction": direction,
                "from": source,
            }
        source = names
    target = {"dim": LABELS, "sparse": True}
    if row.loss == "last":
        target = {"dim": LABELS, "sparse": True, "shape": (), "time_dim_axis": None}
        network["all"] = {"class": "copy", "from": source}
        network["last"] = {"class": "gather", "from": "all", "axis": "T", "position": row.frames - 1}
        source = "last"
    loss = "ctc" if row.loss == "ctc" else "ce"
    network["output"] = {"class": "softmax", "from": source, "target": "classes", "loss": loss}
    config = returnn_tf.Config(
        {
            "extern_data": {"data": {"dim": row.dim}, "classes": target},
            "network": network,
            "behavior_version": 21,
            "optimizer": {"class": "adam"},
            "learning_rate": RATE,
        }
    )
    trainer = returnn_tf.Trainer(returnn_tf.Network.from_config(config, train=True), config)
    data = row.data()
    feed = {"data": data["x"], "data/size0": data["lengths"], "classes": data["labels"]}
    if row.loss == "frame":
        feed["classes/size0"] = data["lengths"]
    if row.loss == "ctc":
        feed["classes/size0"] = data["label_lengths"]
    tensors = trainer.tensors(feed)
    return lambda: float(trainer.step(tensors).total_loss)


tf.config.threading.set_intra_op_parallelism_threads(int(os.environ["BENCH_THREADS"]))
tf.zeros([])  # what TensorFlow needs by itself is not counted
serve(make_step)
