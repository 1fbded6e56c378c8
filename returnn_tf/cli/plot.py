"""``returnn-tf plot LEARNING_RATE_FILE OUT.png``: a plot of scores and learning rates."""

from __future__ import annotations

import os
from collections.abc import Mapping

from returnn_tf.cli.commands import register_command
from returnn_tf.cli.runs.run import find_run
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError, ConfigError
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, leading_score, read_file
from returnn_tf.engine.monitoring.curves import draw_curves, draw_planned_rates, score_groups

_DOC = """
Plot scores and learning rates over the epochs of a run.

    returnn-tf plot out/learning_rates curve.png
    returnn-tf plot out/model curve.svg --keys train_error,dev_error --log
    returnn-tf plot my.config rates.png --planned

Scores that differ by more than a factor of 8 are on a logarithmic axis; otherwise the axis shows the range of the later
epochs, if the first ones would leave no room for it. Several runs in one picture: returnn-tf compare.
"""
#: Names of folders and files that say nothing about a run.
_COMMON = ("learning_rates", "model", "network", "out", "output")


@register_command(
    "plot",
    "LEARNING_RATE_FILE OUT.png [--log | --linear] [--keys A,B] [--smooth N] [--title TEXT] [--planned]",
    "plot scores and learning rates",
    own_help=lambda _: _parser().format_help(),
    group="look",
)
def run(args: list[str]) -> int:
    """Write the plot.

    :param args: the learning-rate file or model folder, the file to write (.png, .pdf, .svg), and options
    :raises ConfigError: wrong arguments, or the picture can't be written
    :raises DataError: the file of scores is damaged, or empty
    """
    given = _parser().parse_args(args)
    if given.out is None:
        raise CommandError("plot: expected two files: returnn-tf plot LEARNING_RATE_FILE OUT.png")
    if given.planned:
        draw_planned_rates(Config.from_file(given.source), given.title or given.source).save(given.out)
        print("wrote", given.out)
        return 0
    epochs = find_run(given.source).epochs if os.path.isdir(given.source) else read_file(given.source)
    title = _title(given.source, epochs) if given.title is None else given.title
    log = True if given.log else False if given.linear else None
    keys = [key for key in (given.keys or "").split(",") if key]
    try:
        picture = draw_curves({given.source: epochs}, title, keys=keys, log=log, smooth=given.smooth)
        picture.save(given.out)
    except ConfigError as exc:
        raise ConfigError("plot: %s" % exc, topic=exc.topic) from None
    print("wrote", given.out)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("plot", _DOC)
    parser.add_argument(
        "source", metavar="LEARNING_RATE_FILE", nargs="?", default="", help="or the folder of the model"
    )
    parser.add_argument("out", metavar="OUT.png", nargs="?", help="the suffix selects the format: .png, .pdf, .svg")
    axis = parser.add_mutually_exclusive_group()
    axis.add_argument("--log", action="store_true", help="logarithmic axes of scores; zeros are left out")
    axis.add_argument("--linear", action="store_true", help="linear axes that show all values")
    parser.add_argument("--keys", metavar="A,B", help="only these scores, e.g. train_error,dev_error; default: all")
    parser.add_argument(
        "--smooth",
        metavar="N",
        type=positive,
        default=1,
        help="the mean of N epochs, over the values in a light colour",
    )
    parser.add_argument(
        "--planned",
        action="store_true",
        help="the first file is a config: draw the learning rates that it plans, before it is run",
    )
    parser.add_argument("--title", metavar="TEXT", help="default: the name of the run and its best score")
    return parser


def _title(source: str, epochs: Mapping[int, EpochData]) -> str:
    """Return the distinctive part of the path of a run, with its best error or score on evaluation data."""
    parts = os.path.abspath(source).split(os.sep)
    name = next((part for part in reversed(parts) if part and part not in _COMMON), source)
    keys = [key for names in score_groups([epochs]).values() for key in names]
    key = leading_score(keys)
    best = best_epochs(epochs, key, 1) if key is not None else []
    if key is None or not best:
        return name
    return "%s: best %s %.4g in epoch %d of %d" % (
        name, key, epochs[best[0]].error[key], best[0], max(epochs),
    )  # fmt: skip
