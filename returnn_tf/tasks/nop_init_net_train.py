"""Task ``nop_init_net_train``: build the network for training, show it, and end."""

from __future__ import annotations

from returnn_tf.compiler.describe import describe_plan
from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.checks import plan_of
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.support import devices
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task


@register_task("nop_init_net_train")
def nop_init_net_train(config: Config) -> int:
    """Build the network of epoch ``load_epoch`` (1), its variables and the graph of a training step; needs no data."""
    entry = NetworkSchedule(config).at(CheckpointSettings(config).load_epoch or 1)
    plan = plan_of(entry)
    log.write(1, describe_plan(plan))
    devices.set_up(config)
    trainer = StepTrainer(Network(plan, entry.config, seed=TrainingSettings(config).random_seed), entry.config)
    graph = trainer.function.trace()
    log.write(1, "The graph of a training step has %d operations." % len(graph.graph.get_operations()))
    return 0
