"""``returnn-tf tool dump-forward-stats``: mean and standard deviation of a layer over all frames of a dataset."""

from __future__ import annotations

import contextlib

from returnn_tf.cli.run import read_config
from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.compat.tool.registry import register_tool
from returnn_tf.compat.tool.shared.arguments import add_verbosity, configure_log, parse
from returnn_tf.compat.tool.shared.datasets import of_config
from returnn_tf.compat.tool.shared.frame_statistics import FrameStatistics
from returnn_tf.compat.tool.shared.order import add_order_arguments, set_dataset
from returnn_tf.config.errors import CommandError
from returnn_tf.engine.data.data_source import DataSource
from returnn_tf.engine.distributed import world
from returnn_tf.engine.passes.forward_pass import ForwardPass
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.training.load_model import load_network

_DOC = """
Compute the mean and standard deviation of a layer over all frames of a dataset, e.g. for internal language models.

    returnn-tf tool dump-forward-stats my.config --layer encoder --load models/epoch.020 --dump_stats encoder
    returnn-tf tool dump-forward-stats my.config --layer output --dataset dev --stats ++batch_size 10000

Writes PREFIX.mean.txt, .std_dev.txt, .min.txt and .max.txt, a number a line, and PREFIX.info.txt.
"""
#: The data is not cut, and nothing of it is left out.
_ALL = {
    "chunking": None,
    "context_window": None,
    "max_seq_length": 0,
    "min_seq_length": 0,
    "seq_drop": 0.0,
    "max_total_num_seqs": -1,
}


def parser() -> CommandParser:
    """Return the parser of the arguments."""
    result = CommandParser("tool dump-forward-stats", _DOC)
    result.add_argument("config", metavar="CONFIG", help="config with network and data")
    result.add_argument("--layer", metavar="NAME", required=True, help="path of the layer")
    result.add_argument("--dataset", metavar="NAME", default="train", help="in the config (train), or as text")
    result.add_argument("--epoch", metavar="N", type=positive, default=1, help="whose sequences (1)")
    result.add_argument("--load", metavar="MODEL", help="checkpoint; default: that of the config")
    add_order_arguments(result)
    result.add_argument("--stats", action="store_true", help="print the statistics")
    result.add_argument("--dump_stats", metavar="PREFIX", help="write them to files")
    add_verbosity(result)
    return result


@register_tool("dump-forward-stats", parser)
def run(args: list[str]) -> int:
    """Compute the statistics.

    :param args: the arguments of the tool
    :raises ConfigError: there is no such layer or dataset, or no checkpoint
    :raises DataError: the layer has no numbers, or not the same features in all sequences
    """
    parsed, overrides = parse(parser(), args)
    configure_log(parsed.verbosity)
    if not (parsed.stats or parsed.dump_stats):
        raise CommandError("dump-forward-stats: give --stats, --dump_stats PREFIX, or both")
    config = read_config([parsed.config, *overrides])
    if parsed.load:
        config.update({"load": parsed.load})
    opened = of_config(config, parsed.dataset, parsed.config)
    name = "train" if parsed.dataset == "train" else "--dataset"
    set_dataset(config, name, opened.dataset, parsed)
    opened.close()
    statistics = FrameStatistics("layer %r over %s" % (parsed.layer, opened.title))
    net, _ = load_network(config)
    forwarder = Forwarder(net, parsed.layer)
    used = {key: net.extern_data[key] for key in forwarder.used_data_keys}
    source = DataSource(config, name, used, world.start(config), finite=True)
    try:
        one_pass = ForwardPass(forwarder, source, parsed.epoch, _ALL)
        with net.sinks, contextlib.closing(one_pass.all()) as rows:
            for some in rows:
                for value, lengths, _ in some.each():
                    cut = tuple(slice(int(lengths[axis][0])) for axis in sorted(lengths))
                    statistics.add(value[0][cut] if cut else value)
    finally:
        source.close()
    if parsed.stats:
        print("\n".join(statistics.lines()))
    if parsed.dump_stats:
        print("wrote %s" % ", ".join(statistics.write(parsed.dump_stats)))
    return 0
