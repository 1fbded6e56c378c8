"""`Trainer` with `fit`: what ``returnn-tf my.config`` does, for a network and datasets of Python."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.config.derived import derived
from returnn_tf.config.errors import SettingError
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.datasets import Dataset
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.learning_rate.file import EpochData
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.schedule import NetworkSchedule
from returnn_tf.engine.support.signals import Stopped, StopRequest
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.engine.training.callbacks import CallbackLike, Callbacks
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.history import History
from returnn_tf.engine.training.set_up import HandedOverState
from returnn_tf.logging.log import log
from returnn_tf.util.html import folded, paragraph

DatasetLike = Union[Dataset, Mapping[str, Any], str]

_MODEL, _RATES = "network", "learning_rates"  # names of files in the folder of `fit`


class Trainer:
    """Network with updater and optimizer state: `step` does one update, `fit` whole trainings.

    It increments the ``global_step`` of the network. The step function is traced at the first call, once for all batch
    sizes and lengths. If loss or gradient are NaN or Inf, no variable changes in that step, unless
    ``gradient_nan_inf_filter`` or ``grad_norm_to_clip_to_zero`` is set; ``loss_spike`` may skip further steps.

    :param net: Network, planned for training
    :param config: options of the update, ``learning_rate``, and for `fit` all settings of a training
    :param world: the processes which train together; default: those of the config
    :raises ConfigError: wrong options of the update
    """

    def __init__(self, net: Network, config: Config, world: Optional[World] = None) -> None:
        #: The step function with its updater, which training and callbacks work on.
        self.steps = StepTrainer(net, config, world)
        #: The scores of all epochs that `fit` has trained.
        self.history = History({})

    def __repr__(self) -> str:
        return "<Trainer, %d steps, %r>" % (self.step_count, self.history)

    def _repr_html_(self) -> str:
        parts: list[str] = [paragraph("Trainer, %d steps" % self.step_count)]
        parts += [self.history._repr_html_()] if len(self.history) else []
        return "".join([*parts, folded("network", self.net._repr_html_())])

    @property
    def net(self) -> Network:
        """Return the network."""
        return self.steps.net

    @property
    def config(self) -> Config:
        """Return the config of the training."""
        return self.steps.config

    @property
    def world(self) -> World:
        """Return the processes which train together."""
        return self.steps.world

    @property
    def step_count(self) -> int:
        """Return the number of steps done over all epochs."""
        return self.steps.step_count

    def state(self) -> dict[str, Any]:
        """Return the variables needed for an exact resume beside parameters and step counter, by name."""
        return self.steps.state()

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the parameters of the network are their averages, e.g. to save or export them.

        Without ``weight_average``, and an optimizer that keeps averages, they are as they are.
        """
        return self.steps.averages.in_place()

    def tensors(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch as tensors for `step`; may run in another thread.

        :raises ConfigError: missing entry or wrong shape
        """
        return self.steps.tensors(feed)

    def step(self, feed: Mapping[str, Any], learning_rate: Optional[float] = None) -> StepResult:
        """Run one update.

        :param feed: feed key (``data``, ``data/size0``, ...) -> array or tensor, batch axis first
        :param learning_rate: default: option ``learning_rate``
        :return: the objective before the update, losses, errors and the norm of the gradient
        :raises NonFiniteError: loss or gradient is NaN or Inf; with ``stop_on_nonfinite_train_score = False``
            the result has ``finite = False`` instead, and the parameters stay unchanged
        :raises DataError: a spike of the loss or too many skipped steps, see `UpdateGuard`; a rate that can't be used
        :raises ConfigError: the feed does not fit, or the network has no loss
        """
        return self.steps.step(feed, learning_rate)

    def fit(
        self,
        train: Optional[DatasetLike] = None,
        dev: Union[None, DatasetLike, Mapping[str, DatasetLike]] = None,
        *,
        epochs: Optional[int] = None,
        folder: Union[None, str, os.PathLike[str]] = None,
        callbacks: Iterable[CallbackLike] = (),
        verbosity: Optional[int] = None,
    ) -> History:
        """Train epochs as ``returnn-tf`` does: batches, scores, learning-rate control and checkpoints by the config.

        :param train: dataset, or the dict of one; default: ``train`` of the config
        :param dev: dataset or dict of one, or several by name; default: ``dev``, ``eval`` and ``eval_datasets``
        :param epochs: the last epoch, as ``num_epochs``; another call with a larger number continues from it
        :param folder: for checkpoints and scores. If a training has begun there, it is resumed, as by the same command;
            default: ``model`` and ``learning_rate_file`` of the config; if it has none, nothing is written
        :param callbacks: objects of `Callback`, or functions to call with each `TrainedEpoch`
        :param verbosity: log level of the output, see ``log_verbosity``; default: that of the log, but in notebooks
            only scores and warnings besides the progress bar
        :return: the scores of all epochs, those of earlier calls and of a resumed training included
        :raises ConfigError: something is wrong in the config, or the network changes from epoch to epoch
        :raises DataError: a dataset or checkpoint is wrong
        :raises KeyboardInterrupt: Ctrl-C, or "interrupt" of a notebook; the state within the epoch is saved in the
            folder, and the network keeps its parameters
        """
        config = derived(self.config, self._changes(train, dev, epochs, folder))
        handed_over = HandedOverState(self.steps, self.history.epochs, Callbacks(callbacks))
        _check_one_network(config)
        stop = StopRequest(config)
        stopped = ""
        with log.at_level(verbosity), _interrupts(stop):
            with Engine(config, stop, self.world, handed_over=handed_over) as engine:
                try:
                    engine.train()
                    stopped = engine.ended_early
                except Stopped as exc:
                    stopped = str(exc)
                finally:
                    self.history = History(_trained(engine.learning_rates.epochs), stopped)
        if stop.signum is not None:
            raise KeyboardInterrupt(stopped)
        return self.history

    def _changes(self, train: Any, dev: Any, epochs: Optional[int], folder: Any) -> dict[str, Any]:
        """Return the settings that the arguments stand for."""
        changes: dict[str, Any] = {"task": "train"}
        if train is not None:
            changes["train"] = _dataset(train)
        if isinstance(dev, Mapping) and "class" not in dev:
            changes.update(dev=None, eval=None, eval_datasets={name: _dataset(each) for name, each in dev.items()})
        elif dev is not None:
            changes.update(dev=_dataset(dev), eval=None, eval_datasets=None)
        if epochs is not None:
            changes["num_epochs"] = epochs
        if folder is not None:
            folder = os.fspath(folder)
            changes.update(model=os.path.join(folder, _MODEL), learning_rate_file=os.path.join(folder, _RATES))
        return changes


def _dataset(given: Any) -> Any:
    if isinstance(given, (Dataset, str)) or (isinstance(given, Mapping) and "class" in given):
        return dict(given) if isinstance(given, Mapping) else given
    raise SettingError(
        "fit: expected a Dataset, or the dict of one with 'class', not %r. Batches of arrays of your own: call "
        "trainer.step for each." % type(given).__name__
    )


def _check_one_network(config: Config) -> None:
    """Check that all epochs train the same network.

    :raises ConfigError: they do not
    """
    schedule = NetworkSchedule(config)
    if len(schedule.distinct(1, max(TrainingSettings(config).num_epochs, 1))) > 1:
        raise SettingError(
            "fit trains the network of the trainer, but the config changes it from epoch to epoch (pretrain, "
            "get_network or '#config'). Train it by the command line, or by "
            "returnn_tf.engine.training.engine.Engine(config)."
        )


def _trained(epochs: Mapping[int, EpochData]) -> dict[int, EpochData]:
    return {epoch: data for epoch, data in epochs.items() if data.error}


@contextlib.contextmanager
def _interrupts(stop: StopRequest) -> Iterator[None]:
    """Handle the first Ctrl-C as a request to finish the step and save; a second one interrupts at once.

    Unlike the command line, nothing ends the process: it belongs to somebody else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        if not stop.graceful or stop.signum is not None:
            raise KeyboardInterrupt
        stop.signum = number
        log.warn("SIGINT: finishing the step; once more to interrupt at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
