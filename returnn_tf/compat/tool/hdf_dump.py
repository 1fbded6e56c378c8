"""``returnn-tf tool hdf-dump DATASET OUT.hdf``: copies any dataset to an HDF file."""

from __future__ import annotations

from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import last_seq, natural, parse
from returnn_tf.compat.tool.shared.datasets import open_dataset, sequences
from returnn_tf.datasets.hdf.copy_writer import copied_keys, write_copy

_DOC = """
Copy any dataset to an HDF file, in the order of an epoch.

    returnn-tf tool hdf-dump dataset.config train.hdf              the dataset train of a config
    returnn-tf tool hdf-dump "{'class': 'Task12AXDataset', 'num_seqs': 4}" task.hdf

An existing file is replaced when all is written. For large datasets, returnn-tf data to-hdf is quicker: it reads with
several processes, and goes on after an interruption.
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool hdf-dump", _DOC)
    result.add_argument("dataset", metavar="DATASET", help="a config, or a dataset as text")
    result.add_argument("output", metavar="OUT.hdf", help="the file to write")
    result.add_argument("--start_seq", metavar="N", type=natural, default=0, help="first sequence (0)")
    result.add_argument("--end_seq", metavar="N", type=last_seq, default=-1, help="last sequence, inclusive (inf)")
    result.add_argument("--epoch", metavar="N", type=positive, default=1, help="whose sequences, in its order (1)")
    return result


@register_tool("hdf-dump", parser)
def run(args: list[str]) -> int:
    """Write the file.

    :param args: the arguments of the tool
    :raises DataError: there are no sequences, one can't be read, or the file can't be written
    """
    parsed, overrides = parse(parser(), args)
    opened = open_dataset(parsed.dataset, overrides=overrides)
    try:
        keys = copied_keys(opened.dataset)
        last = None if parsed.end_seq < 0 else parsed.end_seq
        found = sequences(opened, parsed.epoch, keys, first=parsed.start_seq, last=last)
        count = write_copy(parsed.output, opened.dataset, keys, found)
    finally:
        opened.close()
    print("wrote %s: %d sequences, keys %s" % (parsed.output, count, ", ".join(keys)))
    return 0
