"""The batches of the datasets of a config, for training and evaluation."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional

from numpy.typing import NDArray

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingDataError, SettingError, did_you_mean, nearest_name
from returnn_tf.config.settings.data import DataSettings
from returnn_tf.config.settings.distributed import SHARD
from returnn_tf.datasets import (
    BatchLoader,
    BatchOptions,
    Dataset,
    batch_options_from_config,
    dataset_from_config,
)
from returnn_tf.datasets.core.batches.batch_options import BY_KEY, derived_keys
from returnn_tf.datasets.core.batches.batching import BatchStats
from returnn_tf.datasets.core.declared import Declared
from returnn_tf.datasets.core.share import Share
from returnn_tf.engine.data.augmented import check_not_augmented
from returnn_tf.engine.data.batch_table import known
from returnn_tf.engine.data.fit import check_fits
from returnn_tf.engine.distributed.options import options_of
from returnn_tf.engine.distributed.world import World
from returnn_tf.logging.log import log
from returnn_tf.tensor import Data


class DataSource:
    """One dataset of a config, loaded in a separate process, or in a thread if the config can't be sent to one.

    The latter is the case for a config made in Python which holds functions or objects.

    :param name: train, dev, eval or a key of ``eval_datasets``
    :param used: the data keys which the network needs, as ``extern_data`` declares them
    :param world: the processes which share its sequences
    :param config_of: epoch -> Config with the options of its batches, if these change
    :param finite: whether NaN and Inf in the data are errors; for tasks that do not train, whose result would hide them
    :raises ConfigError: the config has no such dataset, it lacks a key or its data does not fit, or a
        batch option is wrong
    :raises DataError: it is empty
    """

    def __init__(
        self,
        config: Config,
        name: str,
        used: Mapping[str, Data],
        world: World,
        config_of: Optional[Callable[[int], Config]] = None,
        finite: bool = False,
    ) -> None:
        config = known(config)
        self.world = world
        #: each process reads every n-th sequence; otherwise each reads all, in its own order
        self.shares = self.world.size > 1 and (name != "train" or options_of(config).data == SHARD)
        self._defaults: dict[str, Any] = {} if self.shares else {"rank": self.world.rank}
        dataset = dataset_from_config(config, name, **self._defaults)
        if dataset is None:
            raise SettingError(_no_dataset(config, name))
        if dataset.num_seqs == 0:
            raise SettingDataError("The dataset %r is empty: it has no sequences. Check its options and files." % name)
        if name != "train" or finite:
            check_not_augmented(dataset, name)
        self._declared = {
            key: Declared.of(data, finite=finite) for key, data in used.items() if data.batch_axis is not None
        }
        self._used_keys = list(used)
        derived = derived_keys(used, dataset.data_keys)  # which every batch has anyway
        used = {key: data for key, data in used.items() if key not in derived}
        missing = [key for key in used if key not in dataset.data_keys]
        if missing:
            raise SettingError(
                "The dataset %r has no data key %s, which the network needs; it has: %s. Use one of these "
                "in the network and in extern_data."
                % (name, ", ".join(map(repr, missing)), ", ".join(dataset.data_keys))
            )
        for key, data in used.items():
            remark = check_fits(dataset, name, key, data)
            if remark and world.is_chief:
                log.warn(remark)
        self.name = name
        self.dataset: Dataset = dataset
        self._config = config
        self._config_of = config_of or (lambda epoch: config)
        self._reported: list[tuple[str, Any]] = []  # limits without effect
        self.check(config)
        self._loader: Optional[BatchLoader] = None
        self._started: dict[str, Iterable[Any]] = {}  # by epoch and position in it
        self._in_process = not _can_be_sent(config)

    def check(self, config: Config) -> None:
        """Validate the batch options of a config.

        :raises ConfigError: one of them is wrong
        """
        options = batch_options_from_config(config, train=self.name == "train")
        found = [entry for entry in self._drop_limits_of_other_keys(options) if entry not in self._reported]
        self._reported += found
        for name, key in found:
            log.warn("%s of key %r has no effect: the dataset %r has no such key." % (name, key, self.name))
        options.update(used_data_keys=self._used_keys)
        BatchOptions.make("batches of dataset %r" % self.name, self.dataset.data_keys, options)

    def _drop_limits_of_other_keys(self, options: dict[str, Any]) -> list[tuple[str, Any]]:
        """Remove limits by key for keys that the dataset lacks; return (option, key) of each.

        :raises ConfigError: the key probably misspells one of the dataset
        """
        found: list[tuple[str, Any]] = []
        known = self.dataset.data_keys
        for name in BY_KEY:
            value = options.get(name)
            for key in value if isinstance(value, Mapping) else ():
                if key not in known and nearest_name(key, known, cutoff=0.75) is None:
                    found.append((name, key))
        for name, key in found:
            options[name] = {other: limit for other, limit in options[name].items() if other != key}
        return found

    def start(self, epoch: int, **position: Any) -> None:
        """Start to load the batches of an epoch in the background, for `batches` to return.

        :param position: ``start_batch``, ``start_seq``, ``resume`` and ``shared``
        """
        if not self._in_process:
            self._started = {_key(epoch, **position): self.batches(epoch, **position)}

    def forget_started(self) -> None:
        """Discard what `start` has begun to load, as the settings of the epoch have changed since."""
        self._started = {}

    def batches(
        self,
        epoch: int,
        *,
        start_batch: int = 0,
        start_seq: int = 0,
        resume: Optional[Mapping[str, Any]] = None,
        shared: Sequence[Sequence[int]] = (),
        **changes: Any,
    ) -> Iterable[Any]:
        """Return the batches of an epoch.

        :param epoch: from 1
        :param start_batch: number of batches to skip
        :param start_seq: position after their last sequence; 0: unknown
        :param resume: ``Batch.resume`` of the last of them
        :param shared: sequences done so far by other numbers of processes, see `Progress.shared`
        :param changes: options which replace those of the config
        """
        started = self._started.pop(_key(epoch, start_batch, start_seq, resume, shared), None)
        if started is not None and not changes:
            return started
        begin = {"start_batch": start_batch, "start_seq": start_seq, "resume": resume}
        options = {**self._options(epoch, changes), **begin}
        if (self.shares or shared) and "seq_order" not in options:
            self._check_end()
            options["share"] = Share(self.world.rank, self.world.size, tuple(tuple(done) for done in shared))
        if self._in_process:
            log.write(4, "The data of %r is loaded in this process: the config can't be sent to another." % self.name)
            return self.dataset.batches(epoch, **options)
        if self._loader is None:
            self._loader = BatchLoader.from_config(self._config, self.name, **self._defaults)
        return self._loader.batches(epoch, **options)

    def any_batch(self, epoch: int) -> Any:
        """Return some batch of an epoch, regardless of sharding; read in this process.

        :raises DataError: the epoch has no batch
        """
        for batch in self.dataset.batches(epoch, **self._options(epoch, {})):
            return batch
        raise SettingDataError("The dataset %r has no batch in epoch %i." % (self.name, epoch))

    def share(self, order: NDArray[Any]) -> NDArray[Any]:
        """Return the shard of this process: every n-th of an array of sequences."""
        return order[self.world.rank :: self.world.size]

    def order(self, epoch: int) -> Optional[NDArray[Any]]:
        """Return the order of the sequences of all processes in an epoch: array of positions in the corpus.

        None: the dataset is a stream, so it shows only while reading.

        :raises ConfigError: the dataset is endless
        """
        self._check_end()
        return None if self.dataset.is_stream else self.dataset.seq_order(epoch)

    def _check_end(self) -> None:
        if self.dataset.endless:
            raise SettingError(
                "The dataset %r is endless, so it can't be split among the processes. Give it num_seqs, or let "
                "each process read its own: distributed = {'data': 'random_seed_offset'}." % self.name
            )

    @property
    def batch_stats(self) -> BatchStats:
        """Return the counts of dropped sequences of the epoch whose batches were read last."""
        return self.dataset.batch_stats if self._loader is None else self._loader.batch_stats

    def _options(self, epoch: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        options = batch_options_from_config(self._config_of(epoch), train=self.name == "train", epoch=epoch)
        self._drop_limits_of_other_keys(options)
        options.update(changes, used_data_keys=self._used_keys, declared=self._declared)
        return options

    def close(self) -> None:
        """End the loading process."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


def _key(
    epoch: int,
    start_batch: int = 0,
    start_seq: int = 0,
    resume: Optional[Mapping[str, Any]] = None,
    shared: Sequence[Sequence[int]] = (),
) -> str:
    return "%d %d %d %s %s" % (epoch, start_batch, start_seq, resume, list(shared))


def evaluation_names(config: Config) -> list[str]:
    """Return the names of the evaluation datasets of a config: dev, eval, then those of ``eval_datasets``."""
    settings = DataSettings(config)
    given = {"dev": settings.dev, "eval": settings.eval}
    return [name for name, spec in given.items() if spec] + list(settings.eval_datasets or {})


def dataset_name(key: str, value: Any) -> str:
    """Return the name of the dataset chosen by a setting such as ``search_data``, "eval" by default.

    :param key: the setting; returned if its value is a dataset itself
    :param value: of the setting

    :raises ConfigError: neither a name nor a dataset
    """
    value = value or "eval"
    if isinstance(value, str) and not value.lstrip().startswith(("{", "config:")):
        return value
    if isinstance(value, (str, dict, Dataset)):
        return key
    raise SettingError("%s must be the name of a dataset such as 'dev', or a dataset, not %r." % (key, value))


def evaluation_sources(
    config: Config, used: Mapping[str, Data], world: World, config_of: Optional[Callable[[int], Config]] = None
) -> dict[str, DataSource]:
    """Return a source for each of `evaluation_names`."""
    return {name: DataSource(config, name, used, world, config_of) for name in evaluation_names(config)}


def _no_dataset(config: Config, name: str) -> str:
    there = ["train"] * bool(DataSettings(config).train) + evaluation_names(config)
    if name == "train" or not there:
        return "The config has no dataset %r; add %s = {'class': ...}." % (name, name)
    return (
        "The config has no dataset %r. %s Task forward uses the dataset named by forward_data, 'eval' by default."
        % (
            name,
            did_you_mean(name, there),
        )
    )


def _can_be_sent(config: Config) -> bool:
    try:
        pickle.dumps(config)
    except Exception:  # pickling runs code of any objects in the config
        return False
    return True
