"""``returnn-tf tool dump-dataset-raw-strings``: the texts of a dataset, e.g. as references of a search."""

from __future__ import annotations

from returnn_tf.cli.shared.parser import CommandParser
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import (
    add_verbosity,
    check_sources,
    configure_log,
    last_seq,
    natural,
    parse,
)
from returnn_tf.compat.tool.shared.datasets import dataset_of_options, texts_of
from returnn_tf.compat.tool.shared.text_files import check_is_new, write_file
from returnn_tf.config.errors import CommandDataError
from returnn_tf.engine.search.output import as_python_dict

_DOC = """
Write the texts of a dataset to a file: a Python dict from tag to text, in the form of a search_output_file.

    returnn-tf tool dump-dataset-raw-strings --config my.config --dataset dev --out references.py.gz
    returnn-tf tool dump-dataset-raw-strings --dataset "{'class': 'OggZipDataset', ...}" --out references.py

The sequences are in the order that the dataset has in the first epoch.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool dump-dataset-raw-strings", _DOC)
    result.add_argument("--config", metavar="CONFIG", help="config with the dataset")
    result.add_argument("--dataset", metavar="DATASET", help="a name in the config (train), or a dataset as text")
    result.add_argument("--key", default="raw", help="data key with the texts: strings, or bytes in UTF-8 (raw)")
    result.add_argument("--startseq", metavar="N", type=natural, default=0, help="first sequence (0)")
    result.add_argument("--endseq", metavar="N", type=last_seq, default=-1, help="last sequence, inclusive; -1: all")
    result.add_argument("--out", metavar="FILE", required=True, help="file to write, which is new; .gz: compressed")
    add_verbosity(result)
    return result


@register_tool("dump-dataset-raw-strings", parser)
def run(args: list[str]) -> int:
    """Write the texts.

    :param args: the arguments of the tool
    :raises DataError: the file exists, or the data key holds no text
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    check_sources("dump-dataset-raw-strings", {"--dataset or --config": parsed.dataset or parsed.config})
    check_is_new(parsed.out, "--out")
    opened = dataset_of_options(parsed.config, parsed.dataset, overrides)
    try:
        rows = list(texts_of(opened, parsed.key, first=parsed.startseq, last=parsed.endseq))
    finally:
        opened.close()
    if not rows:
        raise CommandDataError("%s has no sequences from %d on" % (opened.title, parsed.startseq))
    write_file(parsed.out, as_python_dict(rows))
    print("wrote %s: the texts of %d sequences" % (parsed.out, len(rows)))
    return 0
