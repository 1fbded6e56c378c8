"""Task ``eval``: losses and errors of a trained model on the datasets ``dev``, ``eval`` and ``eval_datasets``."""

from __future__ import annotations

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.settings.checkpoints import CheckpointSettings
from returnn_tf.config.settings.tasks import TaskSettings
from returnn_tf.engine.data.data_source import DataSource, evaluation_sources
from returnn_tf.engine.distributed import world
from returnn_tf.engine.learning_rate.control import LearningRateControl
from returnn_tf.engine.passes.eval_output import SequenceScores, write_scores
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.loss_positions import LossPositions
from returnn_tf.engine.passes.scored_pass import PassResult
from returnn_tf.engine.passes.unusable_scores import check_usable
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.lines import eval_line
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task


@register_task("eval")
def evaluate(config: Config) -> int:
    """Evaluate the selected epoch; write scores to log, learning-rate file and ``eval_output_*`` files."""
    members = world.start(config)
    net, choice = load_network(config)
    if not net.plan.losses:
        raise CommandError("The network has no loss, so there is nothing to evaluate. Give a layer the option 'loss'.")
    sources = evaluation_sources(config, {key: net.extern_data[key] for key in net.used_data_keys}, members)
    if not sources:
        raise CommandError("There is no dataset to evaluate; set dev, eval or eval_datasets.")
    epoch = choice.epoch or 1
    try:
        results: dict[str, PassResult] = {}
        with net.sinks:
            if TaskSettings(config).eval_output_file_per_seq:
                results = _per_sequence(config, net, epoch, sources)
            else:
                evaluator = Evaluator(net, config)
                for name, source in sources.items():
                    results[name] = evaluator.run(name, epoch, source.batches(epoch), world=members)
    finally:
        for source in sources.values():
            source.close()
    log.write(1, eval_line({name: (result.scores, result.errors) for name, result in results.items()}))
    if not members.is_chief:
        return 0
    path = TaskSettings(config).eval_output_file
    if path:
        write_scores(path, results)
    if not CheckpointSettings(config).load:
        control = LearningRateControl.from_config(config)
        for name, result in results.items():
            control.set_errors(epoch, {"%s_score" % name: result.scores, "%s_error" % name: result.errors})
    check_usable(results)
    return 0


def _per_sequence(config: Config, net: Network, epoch: int, sources: dict[str, DataSource]) -> dict[str, PassResult]:
    """Evaluate with one sequence per batch, uncut, so that each has its own scores."""
    if len(sources) != 1:
        raise CommandError("eval_output_file_per_seq needs exactly one dataset, but there are: %s" % ", ".join(sources))
    ((name, source),) = sources.items()
    loss = TaskSettings(config).loss_name
    if not loss:
        raise CommandError("eval_output_file_per_seq needs loss_name, the layer whose loss counts, e.g. 'output'.")
    writer = SequenceScores(
        loss, TaskSettings(config).output_per_seq_format, TaskSettings(config).output_per_seq_file_format
    )
    evaluator = Evaluator(net, config, positions=LossPositions(net, loss, writer.fields_by_position))
    members = source.world
    result = evaluator.run(
        name, epoch, source.batches(epoch, max_seqs=1, chunking=None), on_step=writer.add, world=members
    )
    writer.merge(members)
    if members.is_chief:
        writer.write(TaskSettings(config).eval_output_file_per_seq)
    return {name: result}
