"""The options which every dataset has."""

from __future__ import annotations

from typing import Tuple

from returnn_tf.datasets.core.options import Option

BASE_OPTIONS: Tuple[Option, ...] = (
    Option("name", "str", None, "name for logs and messages; default: the class"),
    Option("window", "int", 1, "every frame of 'data' becomes so many frames around it, side by side; zeros outside"),
    Option(
        "context_window",
        "int|dict|list",
        None,
        "extra frames around every sequence or chunk: width, {key: width} or (left, right) by key",
    ),
    Option(
        "chunking",
        "str|int|list|dict|function",
        None,
        "cuts sequences: 'size:step', size, (size, step), dicts by key, or a function",
    ),
    Option("min_chunk_size", "int|dict", 0, "no further chunk if only so many frames are left"),
    Option("chunking_variance", "float|int", 0.0, "chunk sizes are reduced at random by up to this share"),
    Option("seq_ordering", "str|function", "default", "order of the sequences, or a function of epoch= giving it"),
    Option("fixed_random_seed", "int", None, "random seed for all epochs"),
    Option(
        "random_seed_offset", "int", None, "added to the seed of every epoch; default RETURNN_RANDOM_SEED_OFFSET or 0"
    ),
    Option("partition_epoch", "int", 1, "one pass over the corpus is cut into so many epochs"),
    Option("repeat_epoch", "int", 1, "an epoch reads the corpus so many times"),
    Option("seq_list_filter_file", "str", None, "only these tags: text file (one per line, .gz allowed) or .pkl list"),
    Option("unique_seq_tags", "bool", False, "leaves out sequences whose tag came before"),
    Option("seq_order_seq_lens_file", "str", None, "dict tag -> length for the order, as Python literal (.gz allowed)"),
    Option("shuffle_frames_of_nseqs", "int", 0, "not supported; only 0"),
    Option("estimated_num_seqs", "int", None, "for progress output where the number is not known"),
    Option("_num_shards", "int", 1, "number of processes which share the corpus"),
    Option("_shard_index", "int", 0, "which of them this is, from 0"),
)
