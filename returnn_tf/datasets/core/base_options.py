"""The options which every dataset has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from returnn_tf.config.options import at_least, between, option

#: Range of the offset of the seeds 1, 2, ... of the epochs, so that all sums are seeds.
SEED_OFFSETS = (-1, 2**31)


@dataclass
class BaseOptions:
    """The options that every dataset has."""

    name: Optional[str] = option(None, help="name for logs and messages; default: the class")
    window: int = option(
        1, help="stack this number of frames around every frame of 'data'; zeros outside", check=at_least(1)
    )
    context_window: Union[None, int, dict[str, Any], list[Any]] = option(
        None, help="extra frames around every sequence or chunk: width, {key: width} or (left, right) by key"
    )
    chunking: Union[None, str, int, list[Any], dict[str, Any], Callable[..., Any]] = option(
        None, help="chunks of sequences: 'size:step', size, (size, step), dicts by key, or a function"
    )
    min_chunk_size: Union[int, dict[str, Any]] = option(
        0, help="no further chunk if at most this number of frames is left"
    )
    chunking_variance: float = option(0.0, help="chunk sizes are reduced at random by up to this fraction")
    seq_ordering: Union[str, Callable[..., Any]] = option(
        "default", help="order of the sequences, or a function of epoch= that returns it"
    )
    fixed_random_seed: Optional[int] = option(None, help="random seed for all epochs", check=between(0, 2**32 - 1))
    random_seed_offset: Optional[int] = option(
        None,
        help="added to the seed of every epoch, which is at least 1; default RETURNN_RANDOM_SEED_OFFSET or 0",
        check=between(*SEED_OFFSETS),
    )
    partition_epoch: int = option(
        1, help="number of epochs into which one pass over the corpus is split", check=at_least(1)
    )
    repeat_epoch: int = option(1, help="number of passes over the corpus in an epoch", check=at_least(1))
    seq_list_filter_file: Optional[str] = option(
        None, help="only these tags: text file (one per line, .gz allowed) or .pkl list"
    )
    unique_seq_tags: bool = option(False, help="drop sequences with a tag that occurred before")
    seq_order_seq_lens_file: Optional[str] = option(
        None, help="dict tag -> length for the order, as Python literal (.gz allowed)"
    )
    shuffle_frames_of_nseqs: int = option(
        0,
        help="exchange the frames of this number of successive sequences at random, their lengths stay; 0 = none",
        check=at_least(0),
    )
    skip_broken_seqs: bool = option(
        False, help="leave out sequences that cannot be read; they are listed at the end of the epoch"
    )
    estimated_num_seqs: Optional[int] = option(None, help="for progress output if the number is unknown")
    _num_shards: int = option(1, help="number of processes which share the corpus", check=at_least(1))
    _shard_index: int = option(0, help="which of them this is, from 0")
