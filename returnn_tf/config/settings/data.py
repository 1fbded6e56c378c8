"""Settings: datasets, and how their sequences are grouped into batches."""

from __future__ import annotations

from typing import Any, Optional, Union

from returnn_tf.config.options import at_least, none_below, probability, seqs_by_length
from returnn_tf.config.settings.catalog import register_settings
from returnn_tf.config.settings.declaration import Effect, SettingGroup, setting

#: One number for all data keys, or a dict by data key.
PerKey = Union[int, dict[str, Optional[int]]]

#: A limit of frames that is found by trying steps of training, see `returnn_tf.engine.training.auto_batch`.
AUTO = "auto"

_TRAINING_DATA = Effect.DATASETS | Effect.ORDER
_BATCHES = Effect.BATCHES | Effect.ORDER


def _batch_size(value: Any) -> Optional[str]:
    """Check that text in ``batch_size`` is "auto"."""
    given = value.values() if isinstance(value, dict) else [value]
    wrong = any(isinstance(each, str) and each != AUTO for each in given)
    return "must be a number or 'auto', for all data keys or in a dict by key" if wrong else None


@register_settings
class DataSettings(SettingGroup):
    """Datasets and batches."""

    topic_order = 30

    train: Any = setting(None, help="dataset to train on", effect=_TRAINING_DATA)
    dev: Any = setting(None, help="dataset for scores during training", effect=Effect.DATASETS)
    eval: Any = setting(None, help="another dataset for scores", effect=Effect.DATASETS)
    eval_datasets: Optional[dict[str, Any]] = setting(
        None, help="further datasets for scores: name -> dataset", effect=Effect.DATASETS
    )
    cache_size: Any = setting(
        None,
        help="memory for the data: bytes, or text such as '4G'; a list of three is for train, dev and eval",
        effect=Effect.DATASETS,
    )
    file_cache_opts: Optional[dict[str, Any]] = setting(
        None,
        help="local copies of files: a dict with cache_directory, cleanup_files_always_older_than_days, "
        "cleanup_files_wanted_older_than_days, cleanup_disk_usage_wanted_free_ratio, num_tries",
        between_runs=True,
        per_rank=True,
    )
    lm_dataset_debug_limit_line_count: Optional[int] = setting(
        None,
        help="read only this number of lines in every LmDataset, to try something",
        dataset_option="debug_limit_line_count",
        check=at_least(1),
        effect=_TRAINING_DATA,
    )

    # order and chunking of the sequences; datasets inherit these
    batching: Any = setting(
        None,
        help="order of the sequences of the training data, as seq_ordering of a dataset",
        dataset_option="seq_ordering",
        effect=_TRAINING_DATA,
    )
    chunking: Any = setting(
        None,
        help="chunks of sequences: 'size:step', a pair, or a pair of dicts by data key",
        dataset_option="chunking",
        effect=_TRAINING_DATA,
    )
    chunking_variance: Any = setting(
        None, help="random chunk sizes", dataset_option="chunking_variance", effect=_TRAINING_DATA, needs="chunking"
    )
    min_chunk_size: Any = setting(
        None,
        help="drop last chunks that are shorter",
        dataset_option="min_chunk_size",
        effect=_TRAINING_DATA,
        needs="chunking",
    )
    chunk_eval: bool = setting(False, help="chunk dev and eval datasets, too", effect=Effect.DATASETS, needs="chunking")
    on_size_limit: Optional[str] = setting(
        None,
        choices=(None, "chunk"),
        help="'chunk': cut sequences of dev and eval datasets at batch_size",
        effect=Effect.DATASETS,
    )
    window: Any = setting(
        None, help="number of context frames to stack", dataset_option="window", effect=_TRAINING_DATA
    )
    context_window: Any = setting(
        None, help="extra frames at both sides of chunks", dataset_option="context_window", effect=_TRAINING_DATA
    )
    shuffle_frames_of_nseqs: Any = setting(
        None,
        help="exchange the frames of n successive sequences of the training data at random",
        dataset_option="shuffle_frames_of_nseqs",
        differs="the order of the frames is another random one",
        effect=_TRAINING_DATA,
    )

    # grouping into batches; the defaults are those of `Dataset.batches`
    batch_size: Union[PerKey, str, dict[str, Union[int, str, None]], None] = setting(
        None,
        help="frames in a batch, padding included; for all data keys or by key. 'auto': as many sequences as fit into "
        "memory, by their length, found by trying steps of training",
        check=_batch_size,
        batch_option="all",
        effect=_BATCHES,
    )
    max_seqs: Optional[int] = setting(
        None, help="maximum number of sequences in a batch; -1: no limit", batch_option="all", effect=_BATCHES
    )
    max_seqs_by_length: Optional[dict[int, int]] = setting(
        None,
        help="maximum number of sequences in a batch by the frames of the longest one: {500: 80, 1000: 40}, as "
        "batch_size = 'auto' finds them. One that is longer than all entries is alone",
        check=seqs_by_length,
        batch_option="all",
        effect=_BATCHES,
    )
    max_seq_length: Union[PerKey, float, None] = setting(
        None,
        help="drop longer sequences in training; 0: no limit; -n: a limit for key 'classes'",
        batch_option="train",
        effect=_BATCHES,
    )
    inc_seq_length: int = setting(
        0, help="added to max_seq_length with each epoch after the first", effect=_BATCHES, needs="max_seq_length"
    )
    min_seq_length: Optional[PerKey] = setting(
        None, help="drop shorter sequences in training", batch_option="train", effect=_BATCHES
    )
    max_pad_size: Optional[PerKey] = setting(
        None,
        help="maximum number of padding frames in a training batch",
        check=none_below(0),
        batch_option="train",
        effect=_BATCHES,
    )
    max_pad_share: Optional[float] = setting(
        None,
        help="maximum share of padding in the frames of a training batch; 0.5 with batch_size = 'auto'",
        check=probability,
        batch_option="train",
        effect=_BATCHES,
    )
    max_total_num_seqs: Optional[int] = setting(
        None,
        help="stop a training epoch after n + 1 sequences; -1 or 0: no limit",
        batch_option="train",
        effect=_BATCHES,
    )
    seq_drop: Optional[float] = setting(
        None,
        help="probability to drop a training sequence",
        check=probability,
        batch_option="train",
        effect=_BATCHES,
    )
    seq_drop_freq: int = setting(
        10,
        help="with seq_drop: in every n-th epoch a probability above 0.5 is halved",
        check=at_least(1),
        effect=_BATCHES,
        needs="seq_drop",
    )
    shuffle_batches: Optional[bool] = setting(
        None, help="shuffle cached lists of batches", batch_option="train", effect=_BATCHES
    )
