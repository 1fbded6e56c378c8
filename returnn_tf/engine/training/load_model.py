"""Network with the parameters of the checkpoint selected by the config; for all tasks but training."""

from __future__ import annotations

from collections.abc import Sequence

from returnn_tf.compiler.describe import log_templates
from returnn_tf.compiler.network import Network
from returnn_tf.compiler.requested import Output, with_outputs
from returnn_tf.config import Config
from returnn_tf.config.errors import CheckpointError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.checkpoints import adapters, checkpoint, model_dir, preload
from returnn_tf.engine.checkpoints import params as checkpoint_params
from returnn_tf.engine.checkpoints.selection import ModelChoice, find_step_checkpoints
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.search.beam import with_beam_size
from returnn_tf.engine.support import devices
from returnn_tf.engine.update.averages import chosen_values
from returnn_tf.graph.fine_tuning import without_fine_tuning
from returnn_tf.logging.log import log
from returnn_tf.util.freed_memory import return_freed_memory


def load_network(
    config: Config, *, search: bool = False, losses: bool = True, outputs: Sequence[Output] = (), random: bool = False
) -> tuple[Network, ModelChoice]:
    """Return the network, planned as for training so that losses inside loops exist, and its checkpoint.

    Parameters set by ``preload_from_files`` are not read from the checkpoint. The global step is that of the
    checkpoint; if everything is preloaded, the largest of the preloaded checkpoints. With ``allow_random_model_init``
    there may be none; the network is then that of the first epoch. States that layers keep across passes
    ("keep_over_epoch_no_init") are those at the end of the training, as with RETURNN.

    :param config: with ``load``, or ``model`` and optionally ``load_epoch``
    :param search: plan it for search instead
    :param losses: whether losses inside loops are needed; without them nothing is planned for training
    :param outputs: layers that are planned even if nothing needs them, see `with_outputs`
    :param random: whether there may be no checkpoint, as with ``allow_random_model_init``; the network is then the last
        one
    :raises ConfigError: there is no checkpoint
    :raises DataError: it is damaged or does not fit the network
    """
    config = without_fine_tuning(config)
    schedule = NetworkSchedule(config)
    choice, values = model_dir.open_intact(config, report_invalid)
    wanted = CheckpointSettings(config).load_average
    if choice.path is not None and wanted is not None:
        source = "the checkpoint %s" % choice.path
        state = checkpoint.read_state(choice.path)
        chosen = chosen_values(adapters.unfolded(values, state), state, averages=wanted, source=source)
        values = adapters.folded(chosen, state)
    # a checkpoint without epoch in its name has the network after all pretraining
    last = max(TrainingSettings(config).num_epochs, schedule.pretrain_epochs + 1)
    first = choice.path is None and CheckpointSettings(config).allow_random_model_init
    entry = schedule.at(choice.epoch or (1 if first else last))
    devices.set_up(config)
    net_config = with_outputs(with_beam_size(entry.config) if search else entry.config, outputs)
    net = Network.from_config(net_config, train=losses and not search, search=search)
    log_templates(net.plan, net_config)
    lacking = {name: variable for name, variable in net.stored_params.items() if name not in values}
    loaded = {**preload.load_on_init(net.plan, lacking), **preload.load(config, net.stored_params)}
    rest = {name: variable for name, variable in net.stored_params.items() if name not in loaded}
    net.global_step.assign(max(loaded.values(), default=0) if choice.path is None else checkpoint.step_of(values))
    if choice.path is not None:
        checkpoint_params.assign(
            rest,
            values,
            source="The checkpoint %s" % choice.path,
            ignore_missing=CheckpointSettings(config).load_ignore_missing_vars,
        )
        net.kept.restore_params(values)
        log.write(3, "Loaded %s" % choice.path)
    elif first or random:
        log.write(2, "There is no checkpoint; %d parameters have random values." % len(rest))
    elif rest or not loaded:
        raise CheckpointError(_nothing_to_load(CheckpointSettings(config).model))
    return_freed_memory()
    return net, choice


def _nothing_to_load(model: str) -> str:
    text = "There is no checkpoint to load: no file %s.<epoch>.index. " % (model or "<model>")
    within = [path for _, path in sorted(find_step_checkpoints(model).items()) if not checkpoint.unfinished(path)]
    if not within:
        return text + "Train first, or set load = '<path prefix>'."
    return text + "There %s from mid-epoch, which %s only by name; for the newest one set load = %r." % (
        "is one" if len(within) == 1 else "are %i" % len(within),
        "is loaded" if len(within) == 1 else "are loaded",
        within[-1],
    )


def report_invalid(path: str, reason: str) -> None:
    """Warn that a checkpoint is skipped."""
    log.warn("The checkpoint %s is skipped: %s. The previous one is used." % (path, reason.rstrip(".")))
