"""``returnn-tf tool get-best-model-epoch``: the epochs with the lowest scores."""

from __future__ import annotations

from typing import Optional

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import check_sources, parse
from returnn_tf.config.errors import CommandDataError, CommandError, did_you_mean
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.engine.learning_rate.control import choose_measure
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, read_file, scores_of

_DOC = """
Print the epochs with the lowest scores, best first, from a learning-rate file.

    returnn-tf tool get-best-model-epoch --learning-rate-file learning_rates
    returnn-tf tool get-best-model-epoch --config my.config --key dev_error --n 1
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool get-best-model-epoch", _DOC)
    result.add_argument("--learning-rate-file", metavar="FILE", help="the file")
    result.add_argument("--config", metavar="CONFIG", help="config whose learning_rate_file it is")
    result.add_argument("--key", help="name of the score; default: the one that controls the learning rate")
    result.add_argument("--n", metavar="N", type=positive, default=5, help="number of epochs (5)")
    return result


@register_tool("get-best-model-epoch", parser)
def run(args: list[str]) -> int:
    """Print the epochs.

    :param args: the arguments of the tool
    :raises DataError: the file can't be read, or has no such score
    """
    parsed, overrides = parse(parser(), args)
    check_sources(
        "get-best-model-epoch", {"--learning-rate-file": parsed.learning_rate_file, "--config": parsed.config}
    )
    path, measures = parsed.learning_rate_file, []
    if parsed.config:
        settings = LearningRateSettings(read_config([parsed.config, *overrides]))
        path, measures = settings.learning_rate_file, settings.learning_rate_control_error_measure
        if not path:
            raise CommandError("%s has no learning_rate_file" % parsed.config)
    epochs = read_file(path)
    key = parsed.key or _default_key(epochs, measures)
    found = best_epochs(epochs, key, parsed.n) if key else []
    if key is None or not found:
        keys = sorted({name for data in epochs.values() for name in scores_of(data.error)})
        hint = did_you_mean(key, keys) if key else ""
        raise CommandDataError(
            ("%r has no scores %s. %s" % (path, "of %r" % key if key else "at all", hint)).rstrip(" .")
        )
    for epoch in found:
        scores = scores_of(epochs[epoch].error)
        names = [key, *sorted(name for name in scores if name != key)]
        print("Epoch %d, %s" % (epoch, ", ".join("%r %s" % (name, scores[name]) for name in names)))
    return 0


def _default_key(epochs: dict[int, EpochData], measures: Optional[list[str]]) -> Optional[str]:
    """Return the deciding score of the last epoch that has scores."""
    with_scores = [epoch for epoch, data in epochs.items() if scores_of(data.error)]
    return choose_measure(epochs[max(with_scores)].error, list(measures or [])) if with_scores else None
