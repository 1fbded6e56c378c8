"""Task ``train``: trains the network of a config, going on where an earlier run stopped."""

from __future__ import annotations

from typing import Any

from returnn_tf.engine.engine import Engine
from returnn_tf.tasks.registry import register_task


@register_task("train")
def train(config: Any) -> int:
    """Trains up to ``num_epochs``."""
    with Engine(config) as engine:
        engine.train()
    return 0
