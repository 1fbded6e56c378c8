"""The batches of the datasets of a config, for training and evaluation."""

from __future__ import annotations

import pickle
from typing import Any, Dict, Iterable, List, Optional

from returnn_tf.config import ConfigError
from returnn_tf.datasets import BatchLoader, Dataset, batch_options_from_config, dataset_from_config
from returnn_tf.log import log


class DataSource:
    """One dataset of a config, loaded in a process of its own; without one if the config can't be sent there.

    That is the case for a config made in Python with functions or objects in it; its data is then read in a thread.
    """

    def __init__(self, config: Any, name: str, used_keys: List[str]) -> None:
        """
        :param config: Config
        :param name: train, dev, eval or a key of ``eval_datasets``
        :param used_keys: the data keys which the network needs
        :raises ConfigError: the config has no such dataset, or it lacks a key
        """
        dataset = dataset_from_config(config, name)
        if dataset is None:
            raise ConfigError("The config has no dataset %r; add %s = {'class': ...}." % (name, name))
        missing = [key for key in used_keys if key not in dataset.data_keys]
        if missing:
            raise ConfigError(
                "The dataset %r has no data key %s, which the network needs; it has: %s."
                % (name, ", ".join(map(repr, missing)), ", ".join(dataset.data_keys))
            )
        self.name = name
        self.dataset: Dataset = dataset
        self._config = config
        self._used_keys = used_keys
        self._loader: Optional[BatchLoader] = None
        self._started: Dict[int, Iterable[Any]] = {}
        self._in_process = not _can_be_sent(config)

    def start(self, epoch: int) -> None:
        """Begins to load the batches of an epoch in the background, which :meth:`batches` gives then."""
        if not self._in_process:
            self._started = {epoch: self.batches(epoch)}

    def batches(self, epoch: int, **changes: Any) -> Iterable[Any]:
        """The batches of an epoch.

        :param epoch: from 1
        :param changes: other options than those of the config
        """
        started = self._started.pop(epoch, None)
        if started is not None and not changes:
            return started
        options = batch_options_from_config(self._config, train=self.name == "train", epoch=epoch)
        options.update(changes, used_data_keys=self._used_keys)
        if self._in_process:
            log.write(4, "The data of %r is loaded in this process: the config can't be sent to another." % self.name)
            return self.dataset.batches(epoch, **options)
        if self._loader is None:
            self._loader = BatchLoader.from_config(self._config, self.name)
        return self._loader.batches(epoch, **options)

    def close(self) -> None:
        """Ends the loading process."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None


def evaluation_names(config: Any) -> List[str]:
    """The datasets for scores which a config has: dev, eval, then those of ``eval_datasets``."""
    extra = config.typed("eval_datasets", None) or {}
    if not isinstance(extra, dict):
        raise ConfigError("eval_datasets must be a dict from name to dataset, not %r." % (extra,))
    return [name for name in ("dev", "eval") if config.typed(name, None)] + list(extra)


def evaluation_sources(config: Any, used_keys: List[str]) -> Dict[str, DataSource]:
    """A source for each of :func:`evaluation_names`."""
    return {name: DataSource(config, name, used_keys) for name in evaluation_names(config)}


def _can_be_sent(config: Any) -> bool:
    try:
        pickle.dumps(config)
    except Exception:  # pickling runs code of whatever objects the config holds
        return False
    return True
