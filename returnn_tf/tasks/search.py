"""Task ``search``: searches in all sequences of a dataset, writes what was found, and counts the errors."""

from __future__ import annotations

from typing import Any, List

from returnn_tf.config import ConfigError, did_you_mean
from returnn_tf.engine.data.data_source import DataSource, dataset_name, evaluation_names
from returnn_tf.engine.search.errors import ErrorReport, decided_layers
from returnn_tf.engine.search.labels import labels_of
from returnn_tf.engine.search.output import SearchOutput
from returnn_tf.engine.search.search_pass import SearchPass
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.engine.training.load_model import load_network
from returnn_tf.logging.log import log
from returnn_tf.tasks.registry import register_task


@register_task("search")
def search(config: Any) -> int:
    """Searches in ``search_data``; what ``search_output_layer`` gives goes to ``search_output_file``."""
    layers, name = output_layers(config), _dataset_name(config)
    path = config.str("search_output_file", "")
    output = SearchOutput(path, config.str("search_output_file_format", "txt") or "txt", layers) if path else None
    net, choice = load_network(config, search=True)
    epoch = choice.epoch or 1
    decided = decided_layers(net) if config.bool("search_do_eval", True) else []
    wanted = list(dict.fromkeys(layers + [entry.layer for entry in decided]))
    searcher = Searcher(net, wanted, with_losses=config.bool("search_do_eval", True))
    source = _source(config, name, searcher)
    try:
        labels = {
            layer: labels_of(node.output, source.dataset, net.extern_data, node.layer.target or config.typed("target"))
            for layer, node in searcher.nodes.items()
        }
        reports = [ErrorReport(entry, labels[entry.layer]) for entry in decided]
        one_pass = SearchPass(searcher, source, labels, reports)
        one_pass.run(epoch)
    finally:
        source.close()
    one_pass.log_errors()
    if output is not None and source.world.is_chief:
        rows = one_pass.rows()
        output.write((tag, {layer: texts[layer] for layer in layers}) for tag, texts in rows)
        log.write(3, "Wrote %s: %s for %i sequences" % (path, ", ".join(layers), len(rows)))
    return 0


def _source(config: Any, name: str, searcher: Searcher) -> DataSource:
    """The dataset; if it lacks what only the losses need, the error says how to do without them."""
    net = searcher.net
    try:
        return DataSource(config, name, {key: net.extern_data[key] for key in searcher.used_data_keys})
    except ConfigError as exc:
        searched = net.data_keys(list(searcher.nodes.values()), with_losses=False)
        if any(repr(key) in str(exc) for key in searcher.used_data_keys if key not in searched):
            raise ConfigError("%s To search without references, set search_do_eval = False." % exc) from exc
        raise


def output_layers(config: Any) -> List[str]:
    """``search_output_layer``, a name or a list of names.

    :raises ConfigError: it is neither
    """
    given = config.typed("search_output_layer", None) or "output"
    layers = [given] if isinstance(given, str) else given
    if not isinstance(layers, (list, tuple)) or not all(isinstance(layer, str) for layer in layers):
        raise ConfigError("search_output_layer must be the name of a layer or a list of names, not %r." % (given,))
    return list(dict.fromkeys(layers))


def _dataset_name(config: Any) -> str:
    """``search_data``, which must be there."""
    name = dataset_name(config, "search_data")
    if name == "search_data":
        return name  # a dataset itself
    there = ["train"] * bool(config.typed("train", None)) + evaluation_names(config)
    if name not in there:
        raise ConfigError(
            "There is no dataset %r to search in. Add it, or name another one by search_data. %s"
            % (name, did_you_mean(name, there))
        )
    return name
