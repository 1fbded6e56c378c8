"""Callbacks of a training: code of users that looks at steps and epochs, and may end the training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingError, did_you_mean, nearest_name
from returnn_tf.config.settings.training import TrainingSettings
from returnn_tf.engine.learning_rate.file import EpochData, best_epochs, scores_of
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.pretrain.checks import MAX_PLANNED, Planned
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.graph.loss import Loss

_KERAS_LIKE = 0.7  # similarity of a name to that of a method; on_batch_end is like on_epoch_end


class StopTraining(Exception):
    """Raise it in a callback to end the training in an orderly way; its text says why."""


@dataclass(frozen=True)
class TrainedStep:
    """A finished step.

    :param epoch: from 1
    :param step: of the epoch, from 1
    :param global_step: steps of all epochs, this one included
    :param result: losses, errors and counts summed over the batch; norm of the gradient
    :param seq_tags: the sequences of the batch
    :param trainer: with the network as ``net``
    """

    epoch: int
    step: int
    global_step: int
    result: StepResult
    seq_tags: list[str]
    trainer: StepTrainer


@dataclass(frozen=True)
class TrainedEpoch:
    """A finished epoch: trained, saved and evaluated.

    :param epoch: from 1
    :param scores: e.g. train_score, dev_score, dev_error
    :param learning_rate: of this epoch
    :param epochs: all so far, as in the learning-rate file
    :param trainer: with the network as ``net``
    """

    epoch: int
    scores: dict[str, float]
    learning_rate: float
    epochs: Mapping[int, EpochData]
    trainer: StepTrainer


class Callback:
    """Base of all callbacks; each method does nothing.

    `on_step_end` and `on_epoch_end` end the training if they return True or raise `StopTraining`: after a step, the
    state within the epoch is saved, as upon a signal, so that the training can be resumed. With several processes, each
    has its own callbacks, and one that asks to stop ends all.
    """

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return type(self).__name__

    @property
    def needed_scores(self) -> Sequence[str]:
        """Return the names of the scores that it needs; training does not begin if one will be missing."""
        return ()

    def on_train_begin(self, trainer: StepTrainer) -> None:
        """Handle the start of training, before the first step, also of a resumed training."""

    def on_step_end(self, step: TrainedStep) -> Optional[bool]:
        """Handle the end of a training step; the next one waits for it."""
        return None

    def on_epoch_end(self, epoch: TrainedEpoch) -> Optional[bool]:
        """Handle the end of an epoch, which is trained, saved and evaluated."""
        return None

    def on_train_end(self, reason: str) -> None:
        """Handle the end of training without an error.

        :param reason: why it ended early; "" after the last epoch
        """


class EarlyStopping(Callback):
    """Ends training when a score has not become better for some epochs.

    It looks at the learning-rate file, so that a resumed training counts the epochs before it, too.

    :param measure: name of the score, e.g. "dev_score" or "dev_error"
    :param patience: number of epochs without improvement after which training ends
    :param min_delta: what counts as an improvement: lower by more than this
    """

    def __init__(self, measure: str = "dev_score", patience: int = 3, min_delta: float = 0.0) -> None:
        if isinstance(measure, bool) or not isinstance(measure, str):
            raise SettingError("EarlyStopping: measure is the name of a score, e.g. 'dev_score', not %r." % (measure,))
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise SettingError("EarlyStopping: patience must be a whole number of at least 1, not %r." % (patience,))
        self.measure = measure
        self.patience = patience
        self.min_delta = min_delta

    @property
    def needed_scores(self) -> Sequence[str]:
        """Return the name of the score."""
        return (self.measure,)

    def on_epoch_end(self, epoch: TrainedEpoch) -> Optional[bool]:
        """Stop if the best epoch is too long ago.

        :raises ConfigError: there is no such score
        """
        check_score(self.measure, epoch.scores, "EarlyStopping")
        best, since = float("inf"), 0
        for number in sorted(n for n in epoch.epochs if n <= epoch.epoch):
            value = epoch.epochs[number].error.get(self.measure)
            if not isinstance(value, (int, float)):
                continue
            better = value < best - self.min_delta
            best, since = (value, 0) if better else (best, since + 1)
        if since < self.patience:
            return None
        first = best_epochs({n: data for n, data in epoch.epochs.items() if n <= epoch.epoch}, self.measure, 1)
        raise StopTraining("%s has not become better for %d epochs; best: epoch %d" % (self.measure, since, first[0]))


#: A callback, or a function that is called at the end of each epoch.
CallbackLike = Union[Callback, Callable[[TrainedEpoch], Any]]


class _AtEpochEnd(Callback):
    """Calls a function at the end of each epoch."""

    def __init__(self, function: Callable[[TrainedEpoch], Any]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """Return the name of the function."""
        return str(getattr(self._function, "__name__", self._function))

    def on_epoch_end(self, epoch: TrainedEpoch) -> Optional[bool]:
        """Call the function; only True stops."""
        return self._function(epoch) is True


class Callbacks:
    """The callbacks of a training: those given, then those of the setting ``callbacks``.

    :raises ConfigError: one is neither a callback nor a function
    """

    def __init__(self, given: Iterable[CallbackLike] = (), where: str = "callbacks") -> None:
        self._all = [_callback(each, where) for each in given]

    def __bool__(self) -> bool:
        return bool(self._all)

    def __add__(self, other: Callbacks) -> Callbacks:
        both = Callbacks()
        both._all = self._all + other._all
        return both

    def check_scores(self, known: Optional[Iterable[str]]) -> None:
        """Check the names of the scores that callbacks look at.

        :param known: those of the training; None if they are not known
        :raises ConfigError: one will not be there
        """
        for each in self._all:
            for name in each.needed_scores if known is not None else ():
                check_score(name, known or (), each.name)

    def train_begin(self, trainer: StepTrainer) -> None:
        """Notify callbacks of the start of training."""
        for each in self._all:
            each.on_train_begin(trainer)

    def step_end(self, step: TrainedStep) -> str:
        """Notify callbacks of a finished step; return the reason to end training, or ""."""
        return self._reason(lambda each: each.on_step_end(step))

    def epoch_end(self, trainer: StepTrainer, epoch: int, epochs: Mapping[int, EpochData]) -> str:
        """Notify callbacks of a finished epoch; return the reason to end training, or ""."""
        data = epochs[epoch]
        done = TrainedEpoch(epoch, scores_of(data.error), data.learning_rate, epochs, trainer)
        return self._reason(lambda each: each.on_epoch_end(done))

    def train_end(self, reason: str) -> None:
        """Notify callbacks of the end of training."""
        for each in self._all:
            each.on_train_end(reason)

    def _reason(self, call: Callable[[Callback], Optional[bool]]) -> str:
        """Call all callbacks, also after one that stops; return the reason of the first that does."""
        reasons = []
        for each in self._all:
            try:
                if call(each):
                    reasons.append("%s asked for it" % each.name)
            except StopTraining as exc:
                reasons.append(str(exc) or "%s asked for it" % each.name)
        return reasons[0] if reasons else ""


def callbacks_of(config: Config) -> Callbacks:
    """Return the callbacks of a config.

    :raises ConfigError: one is neither a callback nor a function
    """
    settings = TrainingSettings(config)
    return Callbacks(settings.callbacks or [], settings.describe_source("callbacks"))


def _callback(given: Any, where: str) -> Callback:
    if isinstance(given, Callback):
        check_methods(given, Callback, where)
        return given
    if isinstance(given, type) and issubclass(given, Callback):
        raise SettingError("%s: %s is a class; write %s()." % (where, given.__name__, given.__name__))
    if callable(given):
        result = _AtEpochEnd(given)
        check_call(given, ["epoch"], "%s: the function %s" % (where, result.name))
        return result
    raise SettingError("%s: expected objects of returnn_tf.Callback, or functions, not %r." % (where, given))


def check_methods(callback: Any, base: type, where: str) -> None:
    """Check that the methods of a callback can be called as those of its base class.

    :param base: the class whose methods ``on_...`` are called
    :param where: how errors begin
    :raises ConfigError: one takes other arguments, or has a name that is never called
    """
    kind = type(callback)
    hooks = [name for name in vars(base) if name.startswith("on_")]
    for name in hooks:
        if getattr(kind, name) is not getattr(base, name) or name in vars(callback):
            wanted = list(inspect.signature(getattr(base, name)).parameters)[1:]
            check_call(getattr(callback, name), wanted, "%s: %s.%s" % (where, kind.__name__, name), method=True)
    for name in dir(kind):
        if name.startswith("on_") and name not in hooks and callable(getattr(kind, name)):
            near = nearest_name(name, hooks, cutoff=_KERAS_LIKE)
            if near is not None and getattr(kind, near) is getattr(base, near):
                raise SettingError(
                    "%s: %s.%s is never called. Did you mean %r? Callbacks have %s."
                    % (where, kind.__name__, name, near, ", ".join(hooks))
                )


def check_call(function: Callable[..., Any], wanted: Sequence[str], what: str, *, method: bool = False) -> None:
    """Check that a function can be called with arguments by position.

    :raises ConfigError: it can't
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C it is not known
        return
    try:
        signature.bind(*wanted)
    except TypeError:
        name = getattr(function, "__name__", "") or "function"
        own = name if name.isidentifier() else "function"
        raise SettingError(
            "%s takes %s, but is called with one argument, %s. Write def %s(%s)."
            % (what, _parameters(signature), wanted[0], own, ", ".join(["self"] * method + list(wanted)))
        ) from None


def _parameters(signature: inspect.Signature) -> str:
    names = list(signature.parameters)
    return "%d arguments (%s)" % (len(names), ", ".join(names)) if names else "no argument"


def score_names(datasets: Iterable[str], planned: Planned) -> Optional[set[str]]:
    """Return the names of scores and errors on datasets, "train" included; None if not all networks are known."""
    if len(planned) >= MAX_PLANNED:
        return None
    names: set[str] = set()
    datasets = list(datasets)
    for entry, plan in planned:
        losses = plan.losses
        scored = [loss.name for loss in losses if type(loss.loss).value is not Loss.value]
        tails = ["_" + name for name in scored] if len(scored) > 1 else []
        with_exp = TrainingSettings(entry.config).calculate_exp_loss
        if with_exp:
            tails = ["_%s%s" % (name, exp) for name in scored for exp in ("", ":exp")]
        names.update("%s_score%s" % (data, tail) for data in datasets for tail in tails or [""])
        wrong = [loss.name for loss in losses if type(loss.loss).error is not Loss.error]
        # which of several losses have an error, some know only when they run
        tails = [""] * bool(wrong) + ["_" + name for name in wrong if len(wrong) > 1]
        names.update("%s_error%s" % (data, tail) for data in datasets for tail in tails)
    return names


def check_score(name: str, known: Iterable[str], where: str) -> None:
    """Check the name of a score.

    :raises ConfigError: there will be none of that name
    """
    known = sorted(known)
    if name not in known:
        raise SettingError("%s: there is no score %r. %s" % (where, name, did_you_mean(name, known, max_listed=20)))
