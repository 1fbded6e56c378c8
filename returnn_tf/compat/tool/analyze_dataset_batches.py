"""``returnn-tf tool analyze-dataset-batches``: sizes and padding of the batches of a dataset."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, configure_log, last_seq, parse
from returnn_tf.compat.tool.shared.datasets import OpenDataset, is_config, of_config, open_dataset
from returnn_tf.compiler.lower import needed_extern_keys
from returnn_tf.compiler.plan_config import plan_from_config
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandDataError, CommandError
from returnn_tf.config.settings.network import NetworkSettings
from returnn_tf.datasets.config import batch_options_from_config
from returnn_tf.engine.data.batch_table import known
from returnn_tf.engine.pretrain.schedule import NetworkSchedule

_DOC = """
Show how many sequences and frames the batches of a dataset have, and how much of them is padding.

    returnn-tf tool analyze-dataset-batches my.config --epoch 3
    returnn-tf tool analyze-dataset-batches my.config --dataset dev --endseq 999 ++batch_size 20000
    returnn-tf tool analyze-dataset-batches train.hdf ++batch_size 5000 ++max_seqs 40
"""


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool analyze-dataset-batches", _DOC)
    result.add_argument("source", metavar="CONFIG", help="a config, an HDF file, or a dataset as text")
    result.add_argument("--dataset", metavar="NAME", help="in the config: train (default), dev, ..., or as text")
    result.add_argument("--epoch", metavar="N", type=positive, default=1, help="whose batches (1)")
    result.add_argument("--endseq", metavar="N", type=last_seq, default=-1, help="last sequence; -1: all")
    result.add_argument("--key", default="data", help="data key whose frames are counted (data)")
    result.add_argument("--use_pretrain", action="store_true", help="with the settings of the epoch in pretraining")
    add_verbosity(result)
    return result


@register_tool("analyze-dataset-batches", parser)
def run(args: list[str]) -> int:
    """Print the figures.

    :param args: the arguments of the tool
    :raises DataError: there are no batches
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    if is_config(parsed.source):
        config = read_config([parsed.source, *overrides])
        opened = of_config(config, parsed.dataset or "train", parsed.source)
        if parsed.use_pretrain:
            config = NetworkSchedule(config).at(parsed.epoch).config
    elif parsed.use_pretrain:
        raise CommandError("--use_pretrain: there is no config")
    else:
        config = read_config(overrides)
        opened = open_dataset(parsed.source, parsed.dataset)
    opened.check_key(parsed.key)
    last = sys.maxsize if parsed.endseq < 0 else parsed.endseq
    if opened.dataset.endless and last == sys.maxsize:
        raise CommandError("%s is endless: give --endseq" % opened.title)
    is_train = parsed.dataset in (None, "train")
    options = batch_options_from_config(known(config), train=is_train, epoch=parsed.epoch)
    options["used_data_keys"] = _used_keys(config, opened, parsed.key)
    seqs, rows, true, padded = [], [], [], []
    for batch in opened.dataset.batches(parsed.epoch, **options):
        seqs.append(batch.num_seqs)
        rows.append(batch.num_rows)
        true.append(batch.num_frames[parsed.key])
        padded.append(batch.num_rows * batch.max_frames[parsed.key])
        if sum(seqs) > last:
            break
    dropped = opened.dataset.batch_stats
    opened.close()
    if not seqs:
        raise CommandDataError("%s has no batches in epoch %d" % (opened.title, parsed.epoch))
    print("%s, epoch %d, batches of %s:" % (opened.title, parsed.epoch, ", ".join(options["used_data_keys"])))
    print("  batches: %d" % len(seqs))
    print("  sequences: %d, %s in a batch" % (sum(seqs), _range(seqs)))
    if rows != seqs:
        print("  rows: %d, %s in a batch" % (sum(rows), _range(rows)))
    print("  frames of %r: %d, %s in a batch" % (parsed.key, sum(true), _range(true)))
    print("  with padding: %d, %s in a batch" % (sum(padded), _range(padded)))
    print("  padding: %.2f %%" % (100 * (1 - sum(true) / max(sum(padded), 1))))
    for name, number in (("too long", dropped.num_too_long), ("too short", dropped.num_too_short)):
        if number:
            print("  left out as %s: %d" % (name, number))
    return 0


def _range(values: list[int]) -> str:
    return "%d to %d (%.1f on average)" % (min(values), max(values), float(np.mean(values)))


def _used_keys(config: Config, opened: OpenDataset, key: str) -> list[str]:
    """Return the data keys that the network needs, and that the limits of batches therefore count; else all."""
    settings = NetworkSettings(config)
    keys: list[Any] = opened.dataset.data_keys
    if settings.network or settings.get_network:
        plan = plan_from_config(NetworkSchedule(config).at(1).config, train=True)
        keys = [key for key in needed_extern_keys(plan, plan.roots(), True) if key in opened.dataset.data_keys]
    return keys if key in keys else [*keys, key]
