"""The batches of a training run, for training and for evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from returnn_tf.config import Config
from returnn_tf.config.settings import Effect, settings_with
from returnn_tf.engine.data.data_source import DataSource, evaluation_sources
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.support.data_facts import data_facts
from returnn_tf.tensor import Data


class TrainingData:
    """The sources of all datasets; reopened where the settings of an epoch change the datasets.

    :param config_of: epoch -> Config
    :param epoch: the first one to train
    :param needed: the data keys which the networks need, as ``extern_data`` declares them
    :param world: the processes which share them
    """

    def __init__(
        self, config_of: Callable[[int], Config], epoch: int, needed: Mapping[str, Data], world: World
    ) -> None:
        self._world = world
        self._config_of = config_of
        self._needed = dict(needed)
        self._open(epoch)

    @property
    def evaluated(self) -> dict[str, DataSource]:
        """Return the evaluation datasets by name."""
        return self._evaluated

    @property
    def shared(self) -> bool:
        """Return whether the training data is sharded over the processes, so that all know the same order."""
        return self._train.shares

    def datasets(self, *, shared: bool = False) -> dict[str, Any]:
        """Return the datasets by name; with ``shared``, only those split among the processes."""
        sources = [self._train, *self._evaluated.values()]
        return {source.name: source.dataset for source in sources if source.shares or not shared}

    def _open(self, epoch: int) -> None:
        config = self._config_of(epoch)
        self._facts: dict[int, dict[str, str]] = {}
        self._settings = _dataset_settings(config)
        self._train = DataSource(config, "train", self._needed, self._world, self._config_of)
        self._evaluated = evaluation_sources(config, self._needed, self._world, self._config_of)

    def check(self, config: Config) -> None:
        """Validate the batch options of a later epoch.

        :raises ConfigError: one is wrong
        """
        if self._stays(config):
            for source in [self._train, *self._evaluated.values()]:
                source.check(config)

    def _stays(self, config: Config) -> bool:
        return _dataset_settings(config) == self._settings

    def start(self, epoch: int, **position: Any) -> None:
        """Start to load the training batches of an epoch in the background, see `DataSource.start`.

        An epoch with other datasets loads them when it begins.
        """
        if self._stays(self._config_of(epoch)):
            self._train.start(epoch, **position)

    def forget_started(self) -> None:
        """Discard the training batches which `start` has begun to load."""
        self._train.forget_started()

    def start_evaluated(self, epoch: int) -> None:
        """Start to load the evaluation batches of an epoch."""
        for source in self._evaluated.values():
            source.start(epoch)

    def train_batches(self, epoch: int, **position: Any) -> Iterable[Any]:
        """Return the training batches from a position on, see `DataSource.batches`."""
        if not self._stays(self._config_of(epoch)):
            self.close()
            self._open(epoch)
        return self._train.batches(epoch, **position)

    def train_facts(self, epoch: int) -> dict[str, str]:
        """Return the `data_facts` of the training data in the current epoch, or the one at which training starts."""
        if epoch not in self._facts:
            self._facts = {epoch: data_facts(self._train.dataset, epoch)}
        return self._facts[epoch]

    def any_train_batch(self, epoch: int) -> Any:
        """Return some training batch, see `DataSource.any_batch`."""
        return self._train.any_batch(epoch)

    def close(self) -> None:
        """End the loading processes."""
        for source in [self._train, *self._evaluated.values()]:
            source.close()


def _dataset_settings(config: Config) -> dict[str, str]:
    """Return the settings as texts, so that any values can be compared."""
    texts = {name: repr(config.typed(name)) for name in settings_with(Effect.DATASETS)}
    return {name: text for name, text in texts.items() if text != "None"}
