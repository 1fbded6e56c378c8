"""Options for grouping sequences into batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from returnn_tf.config.errors import BatchError, did_you_mean
from returnn_tf.config.options import from_options, option, probability, seqs_by_length
from returnn_tf.datasets.core.per_key import is_int, per_key
from returnn_tf.tensor import SEQ_TAG

#: The data keys that batches have whatever the dataset is, where the network needs them: name, position in the order
#: of the epoch, and fraction of the epoch that is done, of each sequence.
DERIVED_KEYS = (SEQ_TAG, "seq_idx", "complete_frac")


def derived_keys(wanted: Collection[str], data_keys: Collection[str]) -> tuple[str, ...]:
    """Return those of `DERIVED_KEYS` that are wanted, and are no data keys of the dataset."""
    return tuple(key for key in DERIVED_KEYS if key in wanted and key not in data_keys)


@dataclass
class GivenBatchOptions:
    """The options in a config."""

    batch_size: Union[None, int, dict[str, Any]] = option(
        1, help="frames of a batch, padding included, for every data key or by key"
    )
    max_seqs: int = option(-1, help="sequences of a batch; -1 = no limit")
    max_seq_length: Union[float, dict[str, Any]] = option(
        0, help="drop longer sequences; 0 = no limit; -n = n for key 'classes'"
    )
    min_seq_length: Union[int, dict[str, Any]] = option(0, help="drop shorter sequences")
    max_pad_size: Union[None, int, dict[str, Any]] = option(None, help="padding frames of a batch")
    max_seqs_by_length: Optional[dict[Any, Any]] = option(
        None,
        help="sequences of a batch by the frames of its longest one, {500: 80, 1000: 40}; one that is longer than all "
        "entries is alone. With it, batch_size has no default",
        check=seqs_by_length,
    )
    max_pad_share: Optional[float] = option(None, help="share of padding in the frames of a batch", check=probability)
    packed_batch_size: Union[None, int, dict[str, Any]] = option(None, help="true frames of a batch, without padding")
    seq_drop: float = option(0.0, help="probability to leave a sequence or chunk out", check=probability)
    max_total_num_seqs: int = option(-1, help="the epoch ends after n + 1 sequences (as elsewhere); -1 or 0 = no limit")
    shuffle_batches: bool = option(
        False, help="shuffle batches that are kept for a second pass", inert="batches are not kept for a second pass"
    )
    recurrent_net: bool = option(True, help="False: no layer needs frame order, so sequences are joined frame by frame")
    used_data_keys: Optional[list[Any]] = option(
        None, help="the data keys which the network uses, seq_tag, seq_idx and complete_frac among them; default all"
    )


#: The options that may be dicts by data key.
BY_KEY = ("batch_size", "max_seq_length", "min_seq_length", "max_pad_size", "packed_batch_size")


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """Checked options, limits by data key (None = no limit).

    See `GivenBatchOptions` for their meaning.

    :param keys: the data keys to deliver
    :param derived: those of `DERIVED_KEYS` to deliver
    :param counted: those whose frames are counted: the keys to deliver, and others with limits
    :param named: the keys that limits name but which are not delivered -> such a limit
    """

    keys: list[str]
    derived: tuple[str, ...]
    counted: list[str]
    named: Mapping[str, str]
    batch_size: dict[str, Optional[int]]
    packed_batch_size: dict[str, Optional[int]]
    max_seq_length: dict[str, Optional[int]]
    min_seq_length: dict[str, Optional[int]]
    max_pad_size: dict[str, Optional[int]]
    max_seqs: Optional[int]
    max_seqs_by_length: Sequence[tuple[int, int]]
    max_pad_share: Optional[float]
    max_total_num_seqs: Optional[int]
    seq_drop: float
    recurrent_net: bool

    @classmethod
    def make(cls, owner: str, data_keys: list[str], options: Mapping[str, Any]) -> BatchOptions:
        """Check the options; ``batch_size=None`` beside another limit of frames means no limit with padding.

        :param owner: for error messages
        :param data_keys: of the dataset
        :raises ConfigError: for an unknown option or key, or an impossible value
        """
        given = {name: value for name, value in options.items() if name != "batch_size" or value is not None}
        opts = from_options(GivenBatchOptions, given, where=owner, none_is_absent=True)
        used = _used_keys(owner, data_keys, opts.used_data_keys)
        for name in BY_KEY:
            value = getattr(opts, name)
            for key in value if isinstance(value, Mapping) else ():
                if key not in data_keys:
                    hint = did_you_mean(key, data_keys)
                    raise BatchError("%s: option %r: there is no data key %r. %s" % (owner, name, key, hint))
        others = (opts.packed_batch_size, opts.max_seqs_by_length)
        if options.get("batch_size") is None and any(other is not None for other in others):
            opts.batch_size = None
        limits = {
            name: per_key(getattr(opts, name), data_keys, option=name)
            for name in ("batch_size", "packed_batch_size", "min_seq_length", "max_pad_size")
        }
        limits["max_seq_length"] = _max_seq_length(opts.max_seq_length, data_keys)
        named = {
            key: name
            for name in BY_KEY
            for key, limit in limits[name].items()
            if limit and key not in used and _names(getattr(opts, name), key)
        }
        for name in ("batch_size", "packed_batch_size"):
            if any(limit is not None and limit <= 0 for limit in limits[name].values()):
                raise BatchError(
                    "%s: option %r is %r; a batch needs at least 1 frame" % (owner, name, getattr(opts, name))
                )
        if opts.max_seqs == 0 or opts.max_seqs < -1:
            raise BatchError("%s: option 'max_seqs' is %r; use -1 for no limit" % (owner, opts.max_seqs))
        for name in ("max_seqs_by_length", "max_pad_share"):
            if getattr(opts, name) is not None and not opts.recurrent_net:
                raise BatchError("%s: option %r needs batches of whole sequences: recurrent_net=True" % (owner, name))
        return cls(
            keys=used,
            derived=derived_keys(opts.used_data_keys or (), data_keys),
            counted=list(data_keys),
            named=named,
            max_seqs=None if opts.max_seqs == -1 else int(opts.max_seqs),
            max_seqs_by_length=tuple(sorted((opts.max_seqs_by_length or {}).items())),
            max_pad_share=opts.max_pad_share,
            max_total_num_seqs=int(opts.max_total_num_seqs) if opts.max_total_num_seqs > 0 else None,
            seq_drop=float(opts.seq_drop),
            recurrent_net=bool(opts.recurrent_net),
            **limits,
        )

    def uses(self, lengths: Mapping[str, int]) -> bool:
        """Return whether the limits of lengths let a sequence or chunk be used.

        :param lengths: frames by counted key
        """
        most, least = self.max_seq_length, self.min_seq_length
        return all((least[key] or 0) <= frames <= (most[key] or frames) for key, frames in lengths.items())

    @property
    def limited_keys(self) -> list[str]:
        """Return the keys for which there is a limit that matters; those of batches don't for batches of one."""
        names = ("max_seq_length", "min_seq_length") if self.max_seqs == 1 else BY_KEY
        return [key for key in self.counted if any(getattr(self, name)[key] for name in names)]

    def with_derived(self, wanted: Collection[str]) -> BatchOptions:
        """Return the options with those of `DERIVED_KEYS` to deliver that are wanted, too."""
        derived = derived_keys((*self.derived, *wanted), self.counted)
        return self if derived == self.derived else dataclasses.replace(self, derived=derived)

    def counting(self, keys: Collection[str]) -> BatchOptions:
        """Return the options with the limits of these keys only."""
        counted = [key for key in self.counted if key in keys]
        limits: dict[str, Any] = {name: {key: getattr(self, name)[key] for key in counted} for name in BY_KEY}
        return dataclasses.replace(self, counted=counted, **limits)


def _names(limit: Any, key: str) -> bool:
    """Return whether a limit names this key, as a dict or -n does, rather than all keys."""
    if isinstance(limit, Mapping):
        return key in limit  # a NumbersDict may have a value for all others
    return limit is not None and limit < 0


def _used_keys(owner: str, data_keys: list[str], used: Optional[list[str]]) -> list[str]:
    if used is None:
        return list(data_keys)
    for key in used:
        if key not in data_keys and key not in DERIVED_KEYS:
            raise BatchError("%s: there is no data key %r. %s" % (owner, key, did_you_mean(key, data_keys)))
    if not used:
        raise BatchError("%s: option 'used_data_keys' is empty" % owner)
    if not any(key in data_keys for key in used):
        text = "%s: option 'used_data_keys' needs a data key of the dataset beside %s; it has: %s"
        raise BatchError(text % (owner, ", ".join(map(repr, used)), ", ".join(data_keys)))
    return [key for key in data_keys if key in used]


def _max_seq_length(value: Any, keys: list[str]) -> dict[str, Optional[int]]:
    """Convert the option: 0 and infinity are no limit; a negative number is a limit for key "classes"."""
    if isinstance(value, Mapping):
        limits = per_key(value, keys, option="max_seq_length")
        return {key: limit if limit and limit > 0 else None for key, limit in limits.items()}
    if value in (0, float("inf")):
        return dict.fromkeys(keys)
    if not is_int(value):
        raise BatchError("option 'max_seq_length' must be an integer or a dict data key -> integer, not %r" % (value,))
    if value < 0:
        return {key: -int(value) if key == "classes" else None for key in keys}
    return per_key(value, keys, option="max_seq_length")
