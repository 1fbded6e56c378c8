"""MetaDataset: several streams of the same sequences from several datasets, joined by tag."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.combining.base import CombiningDataset, takes_tags
from returnn_tf.datasets.combining.data_map import check_dims, parse_data_map
from returnn_tf.datasets.combining.inner import error_of_inner
from returnn_tf.datasets.combining.joined import JoinedEpoch
from returnn_tf.datasets.combining.tag_lists import read_lengths, read_tag_lists
from returnn_tf.datasets.core.base import Dataset
from returnn_tf.datasets.core.data_spec import DataSpec, num_frames
from returnn_tf.datasets.core.per_key import reference_key
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.share import ALL, Chosen

log = logging.getLogger("returnn_tf.datasets")
_ORDER_OF_CONTROL = ("partition_epoch", "repeat_epoch", "seq_list_filter_file", "unique_seq_tags", "seq_lens_file")


@register_dataset()
class MetaDataset(CombiningDataset):
    """Several streams of the same sequences, such as features and alignments, joined by tag.

    The order of an epoch is that of the control dataset, in its own order, parts and filter. Without one, the options
    on the order act on the sequences of the dataset of "data", or on those of ``seq_list_file``. The other datasets may
    have further sequences, and may be streams that read given tags.

    >>> from returnn_tf.datasets import Dataset
    >>> inner = {"class": "Task12AX", "num_seqs": 2}
    >>> options = {"datasets": {"a": inner, "b": inner}, "data_map": {"data": ("a", "data"), "out": ("b", "classes")}}
    >>> Dataset.from_config({"class": "MetaDataset", **options}).num_outputs
    {'data': (9, 2), 'out': (2, 1)}
    """

    @dataclass
    class Options(CombiningDataset.Options):
        """Options in the config."""

        datasets: dict[str, Any] = option(help="name -> dataset")
        data_map: Union[dict[str, Any], list[Any]] = option(help="data key -> (name of a dataset, key in it)")
        seq_order_control_dataset: Optional[str] = option(None, help="the dataset that determines the order")
        seq_list_file: Union[None, str, dict[str, Any]] = option(
            None,
            help="tags that belong together: a text file (.gz allowed) or pickled list for all datasets, or different "
            "lists by name: a dict of files, or a pickled dict of lists",
        )
        seq_lens_file: Optional[str] = option(None, help="JSON: tag -> data key -> length, for the order; '' = none")
        data_dims: Optional[dict[str, Any]] = option(None, help="data key -> [dim, ndim], to check the datasets")

    def setup(self) -> None:
        """Create the datasets that ``data_map`` names, and read the lists of tags."""
        super().setup()
        self._data_map = parse_data_map(self.opts.data_map, owner=self._owner())
        for name, _ in self._data_map.values():
            self._check_name("data_map", name)
        self._default = self._default_name()
        used = {name for name, _ in self._data_map.values()} | {self._default}
        self.inner: dict[str, Dataset] = {
            name: self.inner_dataset(spec, "%s_%s" % (self.name, name))
            for name, spec in self.opts.datasets.items()
            if name in used
        }
        self.is_stream = any(inner.is_stream for inner in self.inner.values())
        self._has_control = self.opts.seq_order_control_dataset is not None
        self._lists: Optional[dict[str, Sequence[str]]] = None
        if self.opts.seq_list_file:
            self._lists = read_tag_lists(self.opts.seq_list_file, list(self.inner), owner=self._owner())
        self._check_control()
        self.check_format()

    def _check_name(self, where: str, name: str) -> None:
        if name not in self.opts.datasets:
            raise ConfigError(
                "%s: option %r names the dataset %r, which 'datasets' lacks. %s"
                % (self._owner(), where, name, did_you_mean(name, self.opts.datasets))
            )

    def _default_name(self) -> str:
        """Return the name of the dataset whose tags are those of the result."""
        control: Optional[str] = self.opts.seq_order_control_dataset
        if control is not None:
            self._check_name("seq_order_control_dataset", control)
            return control
        if "data" not in self._data_map:
            raise ConfigError(
                "%s: without a key 'data' in data_map, seq_order_control_dataset must name the dataset that determines "
                "the order" % self._owner()
            )
        return self._data_map["data"][0]

    def _check_control(self) -> None:
        default = self.inner[self._default]
        if self._has_control and default.num_seqs is None:
            raise ConfigError(
                "%s: dataset %r can't control the order, since it %s; name another one, or use seq_list_file"
                % (self._owner(), self._default, "is endless" if default.endless else "is read as a stream")
            )
        if self._lists is None and default.num_seqs is None:
            raise ConfigError(
                "%s: dataset %r does not know its tags in advance, so seq_order_control_dataset must name another one, "
                "or seq_list_file must give the tags" % (self._owner(), self._default)
            )
        for name, inner in self.inner.items():
            if not takes_tags(inner):
                raise ConfigError(
                    "%s: dataset %r can't read sequences by tag, only all in order" % (self._owner(), name)
                )
        if not self._has_control:
            self._warn_of_unused_lengths("seq_lens_file")
        for name in _ORDER_OF_CONTROL:
            if self._has_control and getattr(self.opts, name) not in (1, None, False, ""):
                text = "%s: option %r has no effect, since dataset %r controls the order"
                log.warning(text, self._owner(), name, self._default)

    # ---- format

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the mapped keys, in sort order."""
        specs = {}
        for key, (name, subkey) in sorted(self._data_map.items()):
            known = self.inner[name].data_specs
            if subkey not in known:
                raise ConfigError(
                    "%s: option 'data_map': dataset %r has no key %r. %s"
                    % (self._owner(), name, subkey, did_you_mean(subkey, known))
                )
            specs[key] = known[subkey]
        if self.opts.data_dims is not None:
            check_dims(self.opts.data_dims, specs, owner=self._owner())
        return specs

    @property
    def num_outputs(self) -> dict[str, Any]:
        """Return (dim, number of axes with time) by key, as the inner datasets do."""
        outputs = {name: dataset.all_outputs for name, dataset in self.inner.items()}
        return {key: outputs[name][subkey] for key, (name, subkey) in sorted(self._data_map.items())}

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        inner = {name: dataset.labels for name, dataset in self.inner.items()}
        return {key: inner[name][sub] for key, (name, sub) in sorted(self._data_map.items()) if sub in inner[name]}

    # ---- the corpus: the rows of the lists of tags, or the sequences of the default dataset

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences of the lists of tags, or of the default dataset."""
        return self.inner[self._default].num_seqs if self._lists is None else len(self._lists[self._default])

    def tag(self, index: int) -> str:
        """Return the tag in the default dataset."""
        return self.inner[self._default].tag(index) if self._lists is None else self._lists[self._default][index]

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch."""
        if not self._has_control:
            return super().seq_order(epoch)
        order = self.inner[self._default].seq_order(epoch)
        if self._lists is not None and order is not None:
            self._check_list_of_control(order)
        return order

    def _check_list_of_control(self, order: NDArray[Any]) -> None:
        """Check that the list of tags has the order of the corpus of the control dataset."""
        control, tags = self.inner[self._default], (self._lists or {})[self._default]
        for index in order:
            found = tags[index] if index < len(tags) else None
            if found != control.tag(int(index)):
                raise DataError(
                    "%s: seq_list_file must have the order of the control dataset %r, but its entry %d is %s, not %r"
                    % (
                        self._owner(),
                        self._default,
                        index,
                        "missing" if found is None else repr(found),
                        control.tag(index),
                    )
                )

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return lengths [num_seqs]: those of ``seq_lens_file``, else the frames of "data", which may be read."""
        if self.opts.seq_lens_file:
            tags = [self.tag(index) for index in range(self.num_seqs or 0)]
            return np.array(read_lengths(self.opts.seq_lens_file, tags, owner=self._owner()))
        name, subkey = self._data_map.get("data") or self._data_map[reference_key(self._data_map)]
        inner = self.inner[name]
        if inner.is_stream:
            return None
        indices = range(self.num_seqs or 0) if self._lists is None else inner.indices_of_tags(self._lists[name])
        return np.array([_length(inner, int(index), subkey) for index in indices])

    # ---- reading

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> JoinedEpoch:
        """Return the sequences of an epoch by position, to be closed.

        :raises DataError: an inner dataset lacks sequences
        """
        whole = self.explicit_order(epoch, chosen)
        assert whole is not None
        order = whole if chosen.share is None else chosen.share.of_order(whole)
        self._check_counts()
        subkeys: dict[str, list[str]] = {}
        for name, subkey in sorted({self._data_map[key] for key in keys}):
            subkeys.setdefault(name, []).append(subkey)
        wanted = {name: self._tags(name, order) for name in subkeys}
        readers = {}
        for name, keys_there in subkeys.items():
            inner = self.inner[name]
            redraws = chosen.share is not None and inner.redraws  # then it depends on what other processes read
            tags = self._tags(name, whole) if redraws else wanted[name]
            try:
                indices = None if tags is not None else whole if redraws else order
                of_inner = Chosen(
                    seq_list=tags,
                    seq_order=indices,
                    share=chosen.share if redraws else None,
                    by_itself=chosen.by_itself,
                    nth=chosen.nth if inner.redraws else None,
                )
                readers[name] = inner.open_epoch(epoch, keys_there, of_inner)
            except DataError as exc:
                raise DataError("%s: %s" % (self._owner(), error_of_inner(inner.name, exc))) from None
        return JoinedEpoch(self, epoch, order, keys, readers, wanted, self._data_map)

    @property
    def redraws(self) -> bool:
        """Return whether data of one of the datasets is random."""
        return any(inner.redraws for inner in self.inner.values())

    def _tags(self, name: str, order: NDArray[Any]) -> Optional[list[str]]:
        """Return the tags to read from a dataset; None: it is read by corpus index."""
        if name == self._default and (self._lists is None or self._has_control):
            return None
        if self._lists is not None:
            tags = self._lists[name]
            return [tags[index] for index in order]
        return self.inner[self._default].tags_together(order.tolist())

    def _check_counts(self) -> None:
        for name, inner in self.inner.items():
            count, wanted = inner.num_seqs, self.num_seqs
            if count is not None and wanted is not None and count < wanted:
                raise DataError(
                    "%s: dataset %r has only %d sequences, fewer than the %d of %s"
                    % (
                        self._owner(),
                        name,
                        count,
                        wanted,
                        "dataset %r" % self._default if self._lists is None else "seq_list_file",
                    )
                )


def _length(inner: Dataset, index: int, key: str) -> int:
    lengths = inner.lengths(index)
    return num_frames(inner.read(index, 1, [key])[key]) if lengths is None else lengths[key]
