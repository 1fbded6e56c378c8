"""``returnn-tf tool tf-avg-checkpoints``: the mean of checkpoints."""

from __future__ import annotations

import argparse

from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import check_sources
from returnn_tf.config.errors import CommandDataError
from returnn_tf.engine.checkpoints import averaging
from returnn_tf.engine.checkpoints.checkpoint import strip_suffix
from returnn_tf.engine.checkpoints.selection import checkpoint_exists, find_checkpoints

_DOC = """
Average checkpoints: the mean of each parameter. Integers, such as global_step, are those of the last checkpoint.

    returnn-tf tool tf-avg-checkpoints --prefix models/epoch. --checkpoints 18,19,20 --output_path models/average
    returnn-tf tool tf-avg-checkpoints --prefix models/epoch. --num_last_checkpoints 4 --output_path models/average

Writes OUTPUT.index, OUTPUT.data-00000-of-00001 and OUTPUT.meta, and the file "checkpoint" beside them; those of an
earlier call are replaced.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool tf-avg-checkpoints", _DOC)
    result.add_argument("--prefix", default="", help="what all names of checkpoints begin with: models/epoch.")
    result.add_argument(
        "--checkpoints",
        metavar="A,B,...",
        help="their names after the prefix, or epochs",
    )
    result.add_argument("--num_last_checkpoints", metavar="N", type=positive, help="the last N of the folder")
    result.add_argument("--output_path", metavar="OUTPUT", required=True, help="name of the checkpoint to write")
    return result


@register_tool("tf-avg-checkpoints", parser)
def run(args: list[str]) -> int:
    """Write the average.

    :param args: the arguments of the tool
    :raises DataError: there are no checkpoints, or they do not fit each other
    """
    parsed = parser().parse_args(args)
    sources = {"--checkpoints": parsed.checkpoints, "--num_last_checkpoints": parsed.num_last_checkpoints}
    check_sources("tf-avg-checkpoints", sources)
    prefixes = _chosen(parsed)
    output = strip_suffix(parsed.output_path)
    values = averaging.average(prefixes)
    averaging.write_with_graph(output, values)
    print("wrote %s: the average of %s" % (output, ", ".join(prefixes)))
    return 0


def _chosen(parsed: argparse.Namespace) -> list[str]:
    """Return the paths of the checkpoints without suffix.

    :raises DataError: one of them is not there
    """
    if parsed.num_last_checkpoints:
        return averaging.last_of_folder(parsed.prefix, parsed.num_last_checkpoints)
    names = [name.strip() for name in parsed.checkpoints.split(",")]
    epochs = find_checkpoints(parsed.prefix[:-1]) if parsed.prefix.endswith(".") else {}
    given = []
    for name in filter(None, names):
        path = strip_suffix(parsed.prefix + name)
        by_number = epochs.get(int(name)) if name.isdecimal() else None
        given.append(by_number if by_number is not None and not checkpoint_exists(path) else path)
    missing = [path for path in given if not checkpoint_exists(path)]
    if missing or not given:
        raise CommandDataError(
            "there is no checkpoint %s" % ", ".join(path + ".index" for path in missing or [parsed.prefix])
        )
    return given
