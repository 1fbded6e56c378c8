"""The datasets that another dataset is made of."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from returnn_tf.config import ConfigError
from returnn_tf.datasets.core.base import Dataset

log = logging.getLogger("returnn_tf.datasets")

# options that only act on the outermost dataset, since the others are read sequence by sequence -> value without effect
_OUTER_ONLY = {"chunking": (None, 0, "0"), "context_window": (None,), "min_chunk_size": (0, None)}
_ORDER_OPTIONS = (
    "seq_ordering",
    "partition_epoch",
    "repeat_epoch",
    "seq_list_filter_file",
    "unique_seq_tags",
    "seq_order_seq_lens_file",
)


def inner_dataset(outer: Dataset, spec: Any, name: str, *, shards: bool = True, **more: Any) -> Dataset:
    """Create a dataset that another one reads from; it inherits the offset of the random seeds and the shard.

    :param spec: as for ``Dataset.from_config``
    :param name: of the inner dataset, for messages
    :param shards: whether it is to read the shard of the outer dataset only, which then must not divide again
    :param more: further options, for those that it does not set
    :raises ConfigError: begins with the outer dataset
    """
    opts = outer.opts
    defaults: dict[str, Any] = {"name": name, **more}
    if shards:
        defaults.update(_num_shards=opts._num_shards, _shard_index=opts._shard_index)
    if opts.random_seed_offset is not None:
        defaults["random_seed_offset"] = opts.random_seed_offset
    try:
        inner = Dataset.from_config(spec, **defaults)
    except ConfigError as exc:
        raise ConfigError("%s: %s" % (outer.described, error_of_inner(name, exc))) from None
    outer.inner_datasets.add(inner)
    if inner.opts.skip_broken_seqs:
        opts.skip_broken_seqs = True  # what is made of a broken sequence is left out as well
    for option, idle in _OUTER_ONLY.items():
        if getattr(inner.opts, option) not in idle:
            text = "%s: inner dataset %r: option %r has no effect there; it acts on the outermost dataset"
            log.warning(text, outer.described, name, option)
    return inner


def error_of_inner(name: str, error: Exception) -> str:
    """Return the text of an error of an inner dataset, which begins with its name once.

    :param name: of the inner dataset
    """
    text = str(error)
    return "inner %s" % text if text.startswith("dataset %r" % name) else "inner dataset %r: %s" % (name, text)


def read_inner(dataset: Dataset, index: int, epoch: int, keys: Sequence[str], nth: int = 0) -> dict[str, NDArray[Any]]:
    """Return the data of a sequence as the dataset gives it by itself, its option ``window`` included.

    :param index: position in its corpus
    :param nth: how many times the epoch had it before
    """
    data = dataset.read_again(index, epoch, keys, nth) if nth else dataset.read(index, epoch, keys)
    return dataset.with_window(data)


def refuse_own_order(dataset: Dataset) -> None:
    """Refuse options on the order, for datasets whose order is that of the inner ones.

    :raises ConfigError: names the option
    """
    for option in _ORDER_OPTIONS:
        value = getattr(dataset.opts, option)
        if value not in ("default", 1, None, False):
            raise ConfigError(
                "%s: option %r is %r, but the order is that of the inner datasets; set it there"
                % (dataset.described, option, value)
            )
