"""``returnn-tf plot LEARNING_RATE_FILE OUT.png``: a plot of scores and learning rates."""

from __future__ import annotations

from returnn_tf.cli.commands import register_command
from returnn_tf.config import ConfigError
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.monitoring.curves import draw_curves


@register_command(
    "plot",
    "LEARNING_RATE_FILE OUT.png",
    "plot scores and learning rates",
    details="The suffix of the output selects the format: .png, .pdf, .svg. Several runs: returnn-tf compare.",
    group="look",
)
def run(args: list[str]) -> int:
    """Write the plot.

    :param args: the learning-rate file, and the file to write (.png, .pdf, .svg)
    """
    if len(args) != 2 or args[0].startswith("-"):
        raise ConfigError("plot: expected two files: returnn-tf plot LEARNING_RATE_FILE OUT.png")
    source, target = args
    picture = draw_curves({source: read_file(source)}, source)
    try:
        picture.save(target)
    except ConfigError as exc:
        raise ConfigError("plot: %s" % exc) from None
    print("wrote", target)
    return 0
