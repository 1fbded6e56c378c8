"""Task ``initialize_model``: writes the initial parameters of a network as a checkpoint."""

from __future__ import annotations

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import checkpoint, model_dir
from returnn_tf.engine.checkpoints.checkpoint import CheckpointInfo
from returnn_tf.engine.checkpoints.meta_graphs import MetaGraphs
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.support.fingerprint import fingerprint
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.logging.log import log
from returnn_tf.tasks.meta_graph import graph_writer
from returnn_tf.tasks.registry import register_task


@register_task("initialize_model")
def initialize_model(config: Config) -> int:
    """Write the initial parameters to the path prefix ``model``, without epoch."""
    model = CheckpointSettings(config).model
    if not model:
        raise CommandError("Task initialize_model needs model = '<path prefix>', where it writes the checkpoint.")
    net = Network.from_config(NetworkSchedule(without_fine_tuning(config)).at(1).config, train=True)
    model_dir.prepare(model)
    info = CheckpointInfo(
        epoch=0, step=0, random_seed=TrainingSettings(config).random_seed, config_sha256=fingerprint(config)
    )
    checkpoint.save(model, net.stored_params, {}, info)
    graphs = MetaGraphs(graph_writer() if CheckpointSettings(config).write_meta_graph else None)
    graphs.add(net.plan, net.config, model)
    graphs.finish()
    log.write(1, "Wrote the initial parameters to %s" % model)
    return 0
