"""Datasets of a config: ``train``, ``dev``, ``eval``, ``eval_datasets``, with options inherited from its top level."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any, Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import BatchError, ConfigError, DatasetError, did_you_mean, nearest_name
from returnn_tf.config.settings.data import AUTO, DataSettings
from returnn_tf.datasets.core.base import Dataset, make_dataset, parse_dataset_spec
from returnn_tf.datasets.core.seq_order import SEED_OFFSET_VARIABLE

SEED_OFFSET_PER_RANK = 16127

ConfigLike = Union[Config, Mapping[str, Any]]


def dataset_from_config(config: ConfigLike, name: str, *, rank: int = 0, **defaults: Any) -> Optional[Dataset]:
    """Return the dataset ``name`` of a config, or None if the config has none of that name.

    Top-level options (window, context_window, chunking, batching as seq_ordering, min_chunk_size, ...) apply to
    datasets that do not set them, but not to those which a function of the config makes. All datasets but "train" are
    sorted by length by default, and not chunked unless they, ``chunk_eval``, ``chunking="1"`` or
    ``on_size_limit="chunk"`` request it.

    :param name: "train", "dev", "eval" or a key of ``eval_datasets``
    :param rank: of this process in multi-process training; gives each rank another random order
    :param defaults: further options for the dataset if it does not set them
    :raises ConfigError: with the name of the dataset
    """
    config = _as_config(config)
    spec = _spec_of(config, name)
    if spec is None:
        return None
    options = _inherited(config, name, spec)
    if rank and SEED_OFFSET_VARIABLE not in os.environ:
        options["random_seed_offset"] = rank * SEED_OFFSET_PER_RANK
    options.update(defaults)
    if isinstance(spec, Dataset):
        return spec
    try:
        dataset_cls, given = parse_dataset_spec(spec, NamesOfConfig(config))
    except ConfigError as exc:
        raise DatasetError("config key %r: %s" % (name, _hint_at_key(config, name, spec) or exc)) from None
    cached = DataSettings(config).cache_size is not None and isinstance(spec, (Mapping, str))
    if cached and not given.get("partition_epoch"):
        options["cache_byte_size"] = _cache_bytes(config, name)
    return make_dataset(dataset_cls, given, options)


def dataset_from_config_file(path: str, name: str, overrides: Optional[Mapping[str, Any]] = None) -> Optional[Dataset]:
    """Call `dataset_from_config` for a config file, with values which replace those of the file."""
    config = Config.from_file(path)
    config.update(dict(overrides or {}))
    return dataset_from_config(config, name)


@dataclasses.dataclass(frozen=True)
class DatasetOfConfig:
    """Creates the dataset of a config where it is called, e.g. in a loading process.

    It can be pickled even if the config holds functions, because the config files are executed again there.
    """

    config: Config
    name: str
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self) -> Dataset:
        """Create the dataset."""
        dataset = dataset_from_config(self.config, self.name, **self.defaults)
        if dataset is None:
            raise DatasetError(
                "the config has no dataset %r. %s" % (self.name, did_you_mean(self.name, _names(self.config)))
            )
        return dataset


def nested_options(config: ConfigLike, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the options of a dataset of a config, and of those inside it, without opening it.

    Nothing is yielded without a dataset of that name, and if it is wrong: what tasks report.
    """
    config = _as_config(config)
    spec = _spec_of(config, name)
    if spec is None:
        return
    try:
        _, options = parse_dataset_spec(spec, NamesOfConfig(config))
    except ConfigError:
        return
    yield from options_within(options)


def options_within(options: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the options of a dataset, and all dicts inside them, among which are those of inner datasets."""
    if isinstance(options, Mapping):
        yield options
        for value in options.values():
            yield from options_within(value)
    elif isinstance(options, (list, tuple)):
        for value in options:
            yield from options_within(value)


def batch_options_from_config(config: ConfigLike, *, train: bool, epoch: int = 1) -> dict[str, Any]:
    """Return the options for ``Dataset.batches`` as set in the config.

    :param train: apply the length limits, ``seq_drop`` and other options for training only
    :param epoch: ``inc_seq_length`` is added to ``max_seq_length`` with every epoch after the first; a large
        ``seq_drop`` decreases
    :raises ConfigError: ``batch_size`` is "auto" still, which only a training replaces by what fits
    """
    settings = DataSettings(_as_config(config))
    wanted = ("all", "train") if train else ("all",)
    values = {name: settings.value(name) for name, info in settings.declared().items() if info.batch_option in wanted}
    options = {name: value for name, value in values.items() if value is not None}
    if auto_keys(settings.batch_size):
        raise BatchError(
            "%s is 'auto': that is found when the model is trained, and not known here. Give a number of frames, e.g. "
            "++batch_size 10000" % settings.describe_source("batch_size")
        )
    if options.get("seq_drop"):
        options["seq_drop"] = _dropped(options["seq_drop"], epoch, settings.seq_drop_freq)
    increase = settings.inc_seq_length if train else 0
    limit = options.get("max_seq_length")
    if increase and limit:
        if isinstance(limit, Mapping):
            options["max_seq_length"] = {key: value + increase * (epoch - 1) for key, value in limit.items()}
        else:
            sign = -1 if limit < 0 else 1  # a negative limit is one for key "classes"
            options["max_seq_length"] = limit + sign * increase * (epoch - 1)
    return options


def auto_keys(batch_size: Any) -> list[str]:
    """Return the data keys whose ``batch_size`` is "auto"; [""] if it is so for all."""
    by_key = batch_size if isinstance(batch_size, Mapping) else {"": batch_size}
    return [key for key, value in by_key.items() if value == AUTO]


def without_auto(config: Config) -> Config:
    """Return the config with the numbers alone that ``batch_size`` gives for some data keys, not "auto".

    :raises ConfigError: another setting needs a number
    """
    settings = DataSettings(config)
    _check_size_limit(settings)
    given = settings.batch_size
    rest = {key: value for key, value in given.items() if value != AUTO} if isinstance(given, Mapping) else {}
    return derived(config, {"batch_size": rest or None}) if auto_keys(given) else config


def _check_size_limit(settings: DataSettings) -> None:
    if settings.on_size_limit == "chunk" and auto_keys(settings.batch_size):
        raise BatchError("on_size_limit = 'chunk' cuts at batch_size, which must be a number then, not 'auto'.")


def _dropped(probability: float, epoch: int, every: int) -> float:
    """Return ``seq_drop`` in an epoch: it is halved in every n-th one while it is above 0.5."""
    for _ in range(epoch // every):
        if probability > 0.5:
            probability /= 2
    return probability


class NamesOfConfig(Mapping[str, Any]):
    """Mapping of all names of a config; only names that are looked up count as used."""

    def __init__(self, config: Config):
        self._config = config

    def __getitem__(self, key: str) -> Any:
        if key not in self._config:
            raise KeyError(key)
        return self._config.typed(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._config.keys())

    def __len__(self) -> int:
        return len(self._config.keys())


def _as_config(config: ConfigLike) -> Config:
    return config if isinstance(config, Config) else Config(dict(config))


def _names(config: Config) -> dict[str, Any]:
    settings = DataSettings(config)
    found = {"train": settings.train, "dev": settings.dev, "eval": settings.eval}
    return {**{name: spec for name, spec in found.items() if spec}, **(settings.eval_datasets or {})}


def _hint_at_key(config: Config, name: str, spec: Any) -> str:
    """Return the fix for a key of the config in the place of a dataset, as in ``++train dev``; or ""."""
    key = spec.strip() if isinstance(spec, str) else ""
    if key == name:
        return "it names itself. Leave it out: its value in the config is used anyway."
    nested = DataSettings(config).eval_datasets or {}
    if not key.isidentifier() or not (key in config or key in nested):
        near = nearest_name(key, [each for each in _names(config) if each != name and each not in nested])
        return (
            "there is no dataset %r, nor a class of that name. Did you mean 'config:%s'?" % (key, near) if near else ""
        )
    reference = "config:%s" % key if key in config else "config:eval_datasets[%r]" % key
    return (
        '%r is a key of the config, not a class of datasets. Write %r: on the command line ++%s "%s", in a config '
        '%s = %r, in Python fit("%s").' % (key, reference, name, reference, name, reference, reference)
    )


def _spec_of(config: Config, name: str) -> Any:
    return _names(config).get(name) or config.typed(name) or None


def _inherited(config: Config, name: str, spec: Any) -> dict[str, Any]:
    """Return the options for a dataset that does not set them; one made by a function gets no settings."""
    options: dict[str, Any] = {"name": name}
    if hasattr(spec, "__dataset__"):  # an object, which has its options
        return options
    settings = DataSettings(config)
    for key, info in settings.declared().items():
        value = settings.value(key) if info.dataset_option and not callable(spec) else None
        if value is not None:
            options[info.dataset_option] = value
    if name != "train":
        options.update(seq_ordering="sorted", shuffle_frames_of_nseqs=0, chunking=_eval_chunking(config))
    return options


def _eval_chunking(config: Config) -> Any:
    """Return the chunking of evaluation datasets: none, with three exceptions."""
    settings = DataSettings(config)
    if settings.on_size_limit == "chunk":
        _check_size_limit(settings)
        return settings.batch_size or 0
    if settings.chunk_eval or str(settings.chunking) == "1":
        return settings.chunking
    return None


def _cache_bytes(config: Config, name: str) -> int:
    """Return ``cache_size`` in bytes, from a number or text such as "4G"; a list of three is for train, dev, eval."""
    value = DataSettings(config).cache_size
    if isinstance(value, str) and "," in value:
        value = value.split(",")
    if isinstance(value, (list, tuple)):
        position = {"train": 0, "dev": 1}.get(name, 2)
        value = value[position] if position < len(value) else 0
    text = str(value).strip().upper()
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    try:
        return int(float(text.rstrip("KMG")) * factor)
    except ValueError:
        raise DatasetError("config key 'cache_size' is %r, but must be bytes or text such as '4G'" % (value,)) from None
