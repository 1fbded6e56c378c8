"""``returnn-tf tool dump-forward``: the values of all layers for some sequences."""

from __future__ import annotations

import contextlib
import itertools
import sys

import numpy as np

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, configure_log, last_seq, natural, parse
from returnn_tf.compat.tool.shared.datasets import of_config
from returnn_tf.config.errors import CommandDataError
from returnn_tf.engine.passes.dataset_pass import DatasetPass, steps_over_sequences
from returnn_tf.engine.passes.layer_values import LayerValues, SeqValue, layers_with_values
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.text import printable

_DOC = """
Print the values of all layers for some sequences, with the checkpoint that the config names.

    returnn-tf tool dump-forward my.config --endseq 0 ++load models/epoch.020
    returnn-tf tool dump-forward my.config --dataset dev --layers encoder output
"""
_EVERYTHING = 1 << 60


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool dump-forward", _DOC)
    result.add_argument("config", metavar="CONFIG", help="config with network, data, and model or load")
    result.add_argument("--dataset", metavar="NAME", default="train", help="in the config (train), or as text")
    result.add_argument("--epoch", metavar="N", type=positive, default=1, help="whose sequences, in its order (1)")
    result.add_argument("--startseq", metavar="N", type=natural, default=0, help="first sequence (0)")
    result.add_argument("--endseq", metavar="N", type=last_seq, default=10, help="last one, inclusive (10); -1: all")
    result.add_argument("--layers", metavar="NAME", nargs="+", help="these layers only")
    add_verbosity(result)
    return result


@register_tool("dump-forward", parser)
def run(args: list[str]) -> int:
    """Print the values.

    :param args: the arguments of the tool
    :raises ConfigError: there is no such layer or dataset, or no checkpoint
    :raises DataError: there are no such sequences
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    config = read_config([parsed.config, *overrides])
    opened = of_config(config, parsed.dataset, parsed.config)
    net, _ = load_network(config)
    values = LayerValues(net, parsed.layers or layers_with_values(net))
    last = sys.maxsize if parsed.endseq < 0 else parsed.endseq
    one_pass: DatasetPass[list[dict[str, SeqValue]]] = DatasetPass(
        "dump-forward", values.tensors, lambda tensors, batch: values.run(tensors), shows_progress=False
    )
    options = {"first": parsed.startseq, "batch_size": _EVERYTHING, "max_seqs": 1}
    over = steps_over_sequences(one_pass, opened.dataset, parsed.epoch, values.used_data_keys, **options)
    count = 0
    with contextlib.closing(over) as steps:
        for step in itertools.islice(steps, max(last + 1 - parsed.startseq, 0)):
            print("seq %d %s" % (parsed.startseq + count, printable(step.batch.seq_tags[0])))
            for name, (value, _) in step.result[0].items():
                print("  %s: %s" % (name, values.output(name)))
                with np.printoptions(precision=5, linewidth=120, threshold=100):
                    print("    " + str(value).replace("\n", "\n    "))
            count += 1
    opened.close()
    if not count:
        raise CommandDataError("%s has no sequences from %d on" % (opened.title, parsed.startseq))
    return 0
