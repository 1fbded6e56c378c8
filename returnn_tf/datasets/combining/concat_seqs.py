"""ConcatSeqsDataset: several sequences of another dataset glued to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError, did_you_mean
from returnn_tf.config.options import option
from returnn_tf.datasets.combining.base import CombiningDataset, takes_tags
from returnn_tf.datasets.combining.delegating import FormatOfInner
from returnn_tf.datasets.combining.gluing import GluedEpoch, Gluing
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core.data_spec import DataSpec
from returnn_tf.datasets.core.epoch_filter import EpochFilter, limit_mean_length
from returnn_tf.datasets.core.registry import register_dataset
from returnn_tf.datasets.core.seq_order import occurrences
from returnn_tf.datasets.core.share import ALL, Chosen


@register_dataset()
class ConcatSeqsDataset(FormatOfInner, CombiningDataset):
    """Sequences of another dataset, glued as lists of tags say: one line per new sequence, tags joined by ``;``.

    The order options act on the new sequences; a length is the sum of those in ``seq_len_file``.
    """

    @dataclass
    class Options(CombiningDataset.Options):
        """Options in the config."""

        dataset: Union[dict[str, Any], str, Any] = option(help="the inner dataset")
        seq_list_file: str = option(help="text file (.gz allowed): one new sequence per line, as joined tags")
        seq_len_file: str = option(help="dict tag -> length, as Python literal (.gz allowed)")
        seq_tag_delim: str = option(";", help="what joins the tags", check=lambda text: None if text else "is empty")
        remove_in_between_postfix: Optional[dict[str, Any]] = option(
            None, help="data key -> label, with which each part ends; it is removed from all parts but the last"
        )
        repeat_in_between_last_frame_up_to_multiple_of: Optional[dict[str, Any]] = option(
            None,
            help="data key -> n: the last frame of all parts but the last is repeated up to a multiple of n frames",
        )
        pad_narrow_data_to_multiple_of_target_len: Optional[dict[str, Any]] = option(
            None,
            help="data key -> (target, n): all parts but the last are cut, or their last frame is repeated, to n times "
            "the length of the target in the inner dataset",
        )
        epoch_wise_filter: Optional[dict[Any, Any]] = option(
            None, help="{(first, last epoch): {'max_mean_len': x}}: only the shortest sequences, with mean length x"
        )

    def setup(self) -> None:
        """Create the inner dataset, and read the lists."""
        super().setup()
        opts = self.opts
        self.inner = self.inner_dataset(opts.dataset, "%s_dataset" % self.name)
        self.is_stream = self.inner.is_stream
        if not takes_tags(self.inner):
            raise ConfigError("%s: the inner dataset can't read sequences by tag" % self._owner())
        self._gluing = Gluing.make(
            opts.remove_in_between_postfix,
            opts.repeat_in_between_last_frame_up_to_multiple_of,
            opts.pad_narrow_data_to_multiple_of_target_len,
            owner=self._owner(),
        )
        self._filter = EpochFilter.parse(opts.epoch_wise_filter, owner=self._owner())
        with self._wanted_by("seq_list_file"):
            self._tags = safe_files.read_seq_tags(opts.seq_list_file)
        self._parts = [tag.split(opts.seq_tag_delim) for tag in self._tags]
        self._sums = self._read_lengths()
        self.check_format()

    def _read_lengths(self) -> NDArray[Any]:
        path = self.opts.seq_len_file
        with self._wanted_by("seq_len_file"):
            table = safe_files.read_seq_lens(path)
        for tag, parts in zip(self._tags, self._parts):
            for part in parts:
                if part not in table:
                    raise DataError(
                        "%s: seq_len_file %r lacks the sequence %r, which %r in %r needs. %s"
                        % (
                            self._owner(),
                            path,
                            part,
                            tag,
                            self.opts.seq_list_file,
                            did_you_mean(part, list(table)[:2000]),
                        )
                    )
        return np.array([sum(table[part] for part in parts) for parts in self._parts])

    def make_specs(self) -> Mapping[str, DataSpec]:
        """Return the format of the inner dataset."""
        specs = self.inner.data_specs
        for name, key in self._gluing.named_keys():
            if key not in specs:
                raise ConfigError(
                    "%s: option %r names the key %r, which the inner dataset lacks. %s"
                    % (self._owner(), name, key, did_you_mean(key, specs))
                )
        return specs

    @property
    def labels(self) -> dict[str, list[str]]:
        """Return class names by key, where known."""
        return self.inner.labels

    @property
    def num_seqs(self) -> int:
        """Return the number of lines of ``seq_list_file``."""
        return len(self._tags)

    def tag(self, index: int) -> str:
        """Return the joined tags."""
        return self._tags[index]

    def seq_lengths(self) -> NDArray[Any]:
        """Return lengths [num_seqs], the sums of those in ``seq_len_file``."""
        return self._sums

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices in the order of this epoch."""
        order = super().seq_order(epoch)
        for entry in self._filter.at(epoch):
            if order is not None:
                order = limit_mean_length(order, self._sums[order], entry.get("max_mean_len"))
        return order

    @property
    def redraws(self) -> bool:
        """Return whether data of the inner dataset is random."""
        return self.inner.redraws

    def _occurrences(self, whole: NDArray[Any], places: NDArray[Any], nth: Optional[NDArray[Any]]) -> NDArray[Any]:
        """Return how many times the epoch has each part before, also in the shares of other processes.

        :param whole: corpus indices of the epoch
        :param places: those that this process reads
        :param nth: how many times the epoch has each of all before, if that is more than their order tells
        """
        tags = [tag for index in whole for tag in self._parts[index]]
        counts = occurrences(np.unique(tags, return_inverse=True)[1])
        if nth is not None:  # by so many times each of its parts has occurred more often
            more = nth - occurrences(whole)
            counts += np.repeat(more, [len(self._parts[index]) for index in whole])
        ends = np.cumsum([len(self._parts[index]) for index in whole])
        chosen = [np.arange(ends[place] - len(self._parts[whole[place]]), ends[place]) for place in places]
        return counts[np.concatenate(chosen)] if chosen else counts[:0]

    def open_epoch(self, epoch: int, keys: list[str], chosen: Chosen = ALL) -> GluedEpoch:
        """Return the sequences of an epoch by position, to be closed.

        :raises DataError: the inner dataset lacks a sequence
        """
        whole = self.explicit_order(epoch, chosen)
        assert whole is not None
        places = np.arange(len(whole)) if chosen.share is None else chosen.share.of_order(np.arange(len(whole)))
        order = whole[places]
        parts = [self._parts[index] for index in order]
        of_inner = Chosen(
            seq_list=[tag for tags_of_one in parts for tag in tags_of_one],
            by_itself=chosen.by_itself,
            nth=self._occurrences(whole, places, chosen.nth) if self.inner.redraws else None,
        )
        try:
            reader = self.inner.open_epoch(epoch, self._gluing.needed_keys(keys), of_inner)
        except DataError as exc:
            raise DataError("%s: seq_list_file %r: %s" % (self._owner(), self.opts.seq_list_file, exc)) from None
        return GluedEpoch(self, epoch, order, keys, reader, parts, self._gluing)
