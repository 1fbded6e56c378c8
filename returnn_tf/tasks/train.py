"""Task ``train``: trains the network of a config, resuming an earlier run if there is one."""

from __future__ import annotations

import signal

from returnn_tf.config import Config
from returnn_tf.engine.distributed import elastic, world
from returnn_tf.engine.support.signals import Stopped, StopRequest, exit_code
from returnn_tf.engine.training.engine import Engine
from returnn_tf.logging.log import log
from returnn_tf.tasks.meta_graph import graph_writer
from returnn_tf.tasks.registry import register_task


@register_task("train")
def train(config: Config) -> int:
    """Train up to ``num_epochs``, or until a signal requests a stop."""
    exit_code(signal.SIGTERM, config)  # raises an error for a wrong setting before it is needed
    with StopRequest(config) as stop:
        try:
            ranks = world.start(config)
            elastic.check(ranks, config)
            elastic.run(ranks, lambda: _train(config, stop, ranks))
        except Stopped as exc:
            log.write(1, str(exc))
            return exit_code(exc.signum, config)
    return 0


def _train(config: Config, stop: StopRequest, ranks: world.World) -> None:
    with Engine(config, stop, ranks, graph_writer()) as engine:
        engine.train()
