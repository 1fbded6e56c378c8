"""Other orders and parts of a dataset than its config says, for passes over all of its data."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Mapping
from typing import Any

from returnn_tf.cli.shared.parser import CommandParser, positive
from returnn_tf.config import Config
from returnn_tf.config.errors import CommandError
from returnn_tf.config.options import declared_options
from returnn_tf.datasets.core.base import Dataset

#: The option that names the inner dataset which makes the order, and the one that has the inner datasets by name.
_CONTROL, _INNER = "seq_order_control_dataset", "datasets"


def add_order_arguments(parser: CommandParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--reset_partition_epoch", metavar="N", type=positive, default=1, help="parts of the data (1)")
    add("--reset_seq_ordering", metavar="ORDER", default="sorted_reverse", help="order (sorted_reverse)")
    add("--reset_epoch_wise_filter", metavar="DICT", help="filter by epoch")


def set_dataset(config: Config, name: str, dataset: Dataset, parsed: argparse.Namespace) -> None:
    """Put the dataset into the config with the order and parts of the command line.

    :raises ConfigError: an option is not a Python value, or the dataset does not take it
    """
    changes: dict[str, Any] = {
        "partition_epoch": parsed.reset_partition_epoch,
        "seq_ordering": parsed.reset_seq_ordering,
    }
    if parsed.reset_epoch_wise_filter is not None:
        changes["epoch_wise_filter"] = _literal(parsed.reset_epoch_wise_filter)
        if "epoch_wise_filter" not in declared_options(type(dataset).Options):
            raise CommandError("--reset_epoch_wise_filter: %s has no such option" % type(dataset).__name__)
    config.update({name: type(dataset)(**_changed(dataset.given, changes))})


def _changed(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a dataset with changes, made where its order comes from."""
    control, inner = options.get(_CONTROL), options.get(_INNER)
    if control and isinstance(inner, Mapping) and isinstance(inner.get(control), Mapping):
        return {**options, _INNER: {**inner, control: _changed(inner[control], changes)}}
    if isinstance(options.get("dataset"), Mapping):
        return {**options, "dataset": _changed(options["dataset"], changes)}
    return {**options, **changes}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise CommandError("--reset_epoch_wise_filter: %r is not a Python dict" % text) from None
