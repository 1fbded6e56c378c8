"""The sequences of a dataset, and their order in an epoch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from returnn_tf.config import ConfigError, DataError
from returnn_tf.config.options import between, from_options, log_inert
from returnn_tf.config.user_code import result_of_config
from returnn_tf.datasets.core import safe_files
from returnn_tf.datasets.core import seq_order as orders
from returnn_tf.datasets.core.base_options import SEED_OFFSETS, BaseOptions
from returnn_tf.datasets.files import with_local_copies
from returnn_tf.logging.log import log

#: Environment variable for the option `random_seed_offset`.
SEED_OFFSET_VARIABLE = "RETURNN_RANDOM_SEED_OFFSET"


class Corpus:
    """Options and order of a dataset; see ``base.Dataset``."""

    @dataclass
    class Options(BaseOptions):
        """Options in the config; a subclass adds its own ones in a nested class of this name."""

    def __init__(self, **given: Any):
        self._given = given
        self.name: str = given.get("name") or type(self).__name__
        self.opts: Any = from_options(self.Options, with_local_copies(given), where=self._owner(), none_is_absent=True)
        self._ordering = self._check_order_options()
        self._warn_of_unused_lengths("seq_order_seq_lens_file")
        self._order_lengths: Optional[NDArray[Any]] = None
        self._warned_empty = self._compared_filter = False

    @property
    def given(self) -> dict[str, Any]:
        """Return the options that were given, without defaults."""
        return dict(self._given)

    @property
    def described(self) -> str:
        """Return name and class, for messages."""
        return self._owner()

    def __repr__(self) -> str:
        return "<%s %r>" % (type(self).__name__, self.name)

    def _wanted_by(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Let errors in the file of an option name dataset and option."""
        return safe_files.wanted_by("%s: option %r" % (self._owner(), name))

    def _owner(self) -> str:
        return "dataset %r (%s)" % (self.name, type(self).__name__)

    @property
    def num_seqs(self) -> Optional[int]:
        """Return the number of sequences in the corpus; None: endless, or a stream."""
        raise NotImplementedError("%s.num_seqs" % type(self).__name__)

    @property
    def endless(self) -> bool:
        """Return whether an epoch never ends."""
        return self.num_seqs is None

    def tag(self, index: int) -> str:
        """Return the name of the sequence at this position in the corpus."""
        return "seq-%d" % index

    def tags_together(self, indices: Sequence[int]) -> list[str]:
        """Return the tags of several sequences."""
        return [self.tag(index) for index in indices]

    def file_of(self, index: int) -> str:
        """Return the file of the sequence at this position in the corpus; empty if there is none."""
        return ""

    def seq_lengths(self) -> Optional[NDArray[Any]]:
        """Return lengths [num_seqs] by which ``sorted`` etc. order the corpus.

        None: these orders then count as ``default``.
        """
        return None

    def _check_order_options(self) -> Optional[orders.Ordering]:
        """Check all options on order; return the parsed order, or None if it is a function of the epoch."""
        opts = self.opts
        opts.window = opts.window + (1 - opts.window % 2)  # an even window is raised by one
        if opts.repeat_epoch > 1 and opts.partition_epoch > 1:
            raise ConfigError(
                "%s: partition_epoch=%d and repeat_epoch=%d contradict each other; use one of them"
                % (self._owner(), opts.partition_epoch, opts.repeat_epoch)
            )
        if opts.skip_broken_seqs and opts.shuffle_frames_of_nseqs:
            raise ConfigError(
                "%s: skip_broken_seqs cannot go with shuffle_frames_of_nseqs, which reads several sequences together"
                % self._owner()
            )
        if not 0 <= opts._shard_index < opts._num_shards:
            raise ConfigError(
                "%s: _shard_index is %d, but must be at least 0 and below _num_shards=%d"
                % (self._owner(), opts._shard_index, opts._num_shards)
            )
        if callable(opts.seq_ordering):
            return None
        return self._parse_ordering(opts.seq_ordering)

    def _parse_ordering(self, text: Any) -> orders.Ordering:
        try:
            return orders.parse_ordering(text)
        except ConfigError as exc:
            raise ConfigError("%s: %s" % (self._owner(), exc)) from None

    def _warn_of_unused_lengths(self, name: str) -> None:
        """Log that an option with lengths has no effect, if it is given and the order does not depend on them."""
        if getattr(self.opts, name) and self._ordering is not None and not self._ordering.needs_lengths:
            log_inert(self._owner(), name, "seq_ordering %r needs no lengths" % (self.opts.seq_ordering,))

    def warn_of_unknown(self, name: str, listed: Collection[str], known: Iterable[str]) -> None:
        """Log that a file with tags to keep has some that the corpus lacks, if it has any that are there.

        :param name: of the option with the file
        """
        unknown = set(listed).difference(known)
        if 0 < len(unknown) < len(listed):
            log.warn(
                "%s: %d of the %d tags in %s %r are not in the corpus, e.g. %r."
                % (self._owner(), len(unknown), len(listed), name, getattr(self.opts, name), min(unknown))
            )

    def ordering(self, epoch: int) -> orders.Ordering:
        """Return the order of this epoch."""
        if self._ordering is not None:
            return self._ordering
        return self._parse_ordering(
            result_of_config("%s: seq_ordering" % self._owner(), self.opts.seq_ordering, epoch=epoch)
        )

    @property
    def random_seed_offset(self) -> int:
        """Return the offset of the seed of each epoch.

        The option, else environment variable RETURNN_RANDOM_SEED_OFFSET, else 0.
        """
        if self.opts.random_seed_offset is not None:
            return int(self.opts.random_seed_offset)
        text = os.environ.get(SEED_OFFSET_VARIABLE, "0")
        try:
            offset = int(text)
        except ValueError:
            raise ConfigError("environment variable %s is %r, not an integer" % (SEED_OFFSET_VARIABLE, text)) from None
        fault = between(*SEED_OFFSETS)(offset)
        if fault:
            raise ConfigError("environment variable %s %s, got %d" % (SEED_OFFSET_VARIABLE, fault, offset))
        return offset

    def epoch_seed(self, epoch: int, *, nth: int = 1) -> int:
        """Return the random seed of an epoch."""
        return orders.epoch_seed(
            epoch,
            partition_epoch=self.opts.partition_epoch,
            nth=nth,
            fixed=self.opts.fixed_random_seed,
            offset=self.random_seed_offset,
        )

    def seq_order(self, epoch: int = 1) -> Optional[NDArray[Any]]:
        """Return corpus indices (int64) in the order in which this epoch reads them; None: endless, in corpus order.

        Applied in this order: full order, unique tags, partition and shard, repetition, filter.

        :raises DataError: the corpus is empty or the filter leaves nothing
        """
        if self.num_seqs == 0:
            raise DataError("%s is empty: it has no sequences" % self._owner())
        ordering = self.ordering(epoch)
        if ordering.kind in ("sorted", "sorted_reverse") and self._lengths_for_order() is None:
            ordering = orders.Ordering("default")
        if self.num_seqs is None:
            self._check_endless(ordering)
            return None
        seed = self.epoch_seed(epoch, nth=ordering.nth)
        return self._cut(orders.order_sequences(ordering, self.num_seqs, self._needed_lengths, seed), epoch)

    def _cut(self, order: NDArray[Any], epoch: int) -> NDArray[Any]:
        """Return what an epoch takes of a full order: unique tags, partition and shard, repetition, filter."""
        opts = self.opts
        if opts.unique_seq_tags:
            order = self._unique(order)
        parts, shards = opts.partition_epoch, opts._num_shards
        if parts * shards > 1:
            part = (max(epoch, 1) - 1) % parts * shards + opts._shard_index
            found = orders.partition(order, num_parts=parts * shards, part=part)
            if not len(found) and not self._warned_empty:
                self._warned_empty = True
                log.warn(
                    "%s: epoch %d is empty: %d sequences are divided into %d parts (partition_epoch=%d%s)"
                    % (
                        self._owner(),
                        epoch,
                        len(order),
                        parts * shards,
                        parts,
                        ", _num_shards=%d" % shards if shards > 1 else "",
                    )
                )
            order = found
        if opts.repeat_epoch > 1:
            order = np.tile(order, opts.repeat_epoch)
        if opts.seq_list_filter_file:
            order = self._filtered(order, epoch)
        return np.asarray(order, np.int64)

    def _check_endless(self, ordering: orders.Ordering) -> None:
        opts = self.opts
        cuts = max(opts.partition_epoch, opts.repeat_epoch, opts._num_shards) > 1
        if ordering.kind != "default" or cuts or opts.unique_seq_tags or opts.seq_list_filter_file:
            raise ConfigError(
                "%s is endless, so it has the order 'default' only, and no parts; give it num_seqs" % self._owner()
            )

    def _unique(self, order: NDArray[Any]) -> NDArray[Any]:
        seen: set[str] = set()
        keep = []
        for index in order:
            tag = self.tag(int(index))
            if tag not in seen:
                seen.add(tag)
                keep.append(index)
        return np.asarray(keep, np.int64)

    def _filtered(self, order: NDArray[Any], epoch: int) -> NDArray[Any]:
        path = self.opts.seq_list_filter_file
        with self._wanted_by("seq_list_filter_file"):
            tags = set(safe_files.read_seq_tags(path))
        if not self._compared_filter:
            self._compared_filter = True
            self.warn_of_unknown("seq_list_filter_file", tags, map(self.tag, range(self.num_seqs or 0)))
        order = np.asarray([index for index in order if self.tag(int(index)) in tags], np.int64)
        if not len(order):
            raise DataError(
                "%s: epoch %d is empty: none of its sequences is in seq_list_filter_file %r (%d tags). Are the tags of "
                "another corpus, or is partition_epoch=%d too large?"
                % (self._owner(), epoch, path, len(tags), self.opts.partition_epoch)
            )
        return order

    def _lengths_for_order(self) -> Optional[NDArray[Any]]:
        if self._order_lengths is None:
            path = self.opts.seq_order_seq_lens_file
            if path:
                self._order_lengths = self._lengths_of_file(path)
            else:
                lengths = self.seq_lengths()
                self._order_lengths = None if lengths is None else np.asarray(lengths)
        return self._order_lengths

    def _lengths_of_file(self, path: str) -> NDArray[Any]:
        with self._wanted_by("seq_order_seq_lens_file"):
            table = safe_files.read_seq_lens(path)
        lengths = []
        for index in range(self.num_seqs or 0):
            tag = self.tag(index)
            if tag not in table:
                raise DataError("%s: seq_order_seq_lens_file %r lacks the sequence %r" % (self._owner(), path, tag))
            lengths.append(table[tag])
        return np.asarray(lengths)

    def _needed_lengths(self) -> NDArray[Any]:
        lengths = self._lengths_for_order()
        if lengths is None:
            raise ConfigError(
                "%s: seq_ordering %r needs the lengths of the sequences, which are not known before they are read. "
                "Use 'default' or 'random', or give seq_order_seq_lens_file" % (self._owner(), self.opts.seq_ordering)
            )
        return lengths
