"""The trials of a sweep, in a file of Optuna that several processes share, also on several machines."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from returnn_tf.cli.sweep.description import Sweep, folder_of
from returnn_tf.config.errors import CheckpointError, CommandDataError, CommandError, ConfigError, did_you_mean
from returnn_tf.engine.checkpoints.lock import ModelLock, holder_alive
from returnn_tf.engine.support.disk_errors import not_writable
from returnn_tf.util.installing import install_command
from returnn_tf.util.temporary import exclusive

_JOURNAL = "trials.journal"
_NAME = "sweep"
_FACTS = "facts"  # attribute of the study: what must not change
_OVERRIDES, _WHY = "overrides", "why"  # attributes of a trial: what it changes in the config; why it failed
_PATIENCE = 60.0  # seconds to wait for another process that begins a trial


class Claimed:
    """A trial that this process trains; no other one does as long as it holds its lock."""

    def __init__(self, study: Study, trial: Any, lock: ModelLock) -> None:
        self._study, self._trial, self._lock = study, trial, lock
        self.number: int = trial.number
        self._stored = set(study.frozen(trial.number).intermediate_values)
        self._seen: set[int] = set()

    def overrides(self, sweep: Sweep) -> dict[str, Any]:
        """Return what the trial changes in the config.

        :raises ConfigError: see `Sweep.overrides`
        """
        # by number, so that a sweep which was killed suggests the same as one which was not
        self._study.seed(self.number)
        found = sweep.overrides(self._trial)
        frozen = self._study.frozen(self.number)
        for name in frozen.system_attrs.get("fixed_params", {}):
            if name not in frozen.params:
                hint = did_you_mean(name, frozen.params)
                self.failed("first: suggest asks for no value of the name %r" % name)  # else it would be tried again
                raise CommandError("%s: first: suggest asks for no value of the name %r. %s" % (sweep.path, name, hint))
        self._trial.set_user_attr(_OVERRIDES, found)
        return found

    def report(self, epoch: int, value: float) -> bool:
        """Store the metric after an epoch, unless that was done before a restart.

        :return: whether this process reports it for the first time
        """
        is_new = epoch not in self._seen
        self._seen.add(epoch)
        if epoch not in self._stored:
            self._stored.add(epoch)
            self._trial.report(value, epoch)
        return is_new

    def should_be_pruned(self) -> bool:
        """Return whether the trial is worse than the others were after the same epoch."""
        return bool(self._trial.should_prune())

    def completed(self, value: float) -> None:
        """Store the result, the lowest metric of all epochs."""
        self._tell(value, "COMPLETE")

    def pruned(self) -> None:
        """Store that the trial was ended early."""
        self._tell(None, "PRUNED")

    def failed(self, why: str) -> None:
        """Store that there is no result."""
        self._trial.set_user_attr(_WHY, why)
        self._tell(None, "FAIL")

    def _tell(self, value: Optional[float], state: str) -> None:
        import optuna

        self._study.study.tell(self._trial, value, state=optuna.trial.TrialState[state])
        self.release()

    def release(self) -> None:
        """Leave the trial to the next process, if it has no result."""
        self._lock.release()


class Study:
    """The trials of a sweep.

    :param sweep: description
    :param create: whether to begin the sweep if it has not begun
    :raises ConfigError: Optuna is missing; the folder has another sweep, none, or can't be written
    :raises DataError: the file of the trials is damaged
    """

    def __init__(self, sweep: Sweep, *, create: bool = True) -> None:
        try:
            import optuna
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            text = "sweep needs optuna: " + install_command("sweep")
            raise ConfigError(text, topic="installation") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep = sweep
        self._path = os.path.join(sweep.folder, _JOURNAL)
        if not create and not os.path.exists(self._path):
            raise CommandError("sweep: %s has not begun: there is no %s" % (sweep.path, self._path))
        try:
            os.makedirs(sweep.folder, exist_ok=True)
            with self._alone():
                _cut_incomplete(self._path)
                self.study = optuna.create_study(
                    storage=JournalStorage(JournalFileBackend(self._path)),
                    study_name=_NAME,
                    load_if_exists=True,
                    pruner=_pruner(sweep),
                )
                self._check_facts()
                for values in sweep.options.first:
                    self.study.enqueue_trial(values, skip_if_exists=True)
        except OSError as exc:
            raise not_writable("sweep: %r" % self._path, exc, topic="commands") from exc
        except (ValueError, KeyError) as exc:
            if isinstance(exc, ConfigError):
                raise
            raise CommandDataError("sweep: %s is damaged: %s. Remove it to begin again." % (self._path, exc)) from exc

    def _check_facts(self) -> None:
        """Check that the trials that are there can be compared with new ones.

        :raises ConfigError: they can't
        """
        options = self._sweep.options
        facts = {"config": options.config, "metric": options.metric, "epochs": options.epochs}
        begun = self.study.user_attrs.get(_FACTS)
        if begun is None:
            self.study.set_user_attr(_FACTS, facts)
        for name, value in (begun or {}).items():
            if facts.get(name) != value:
                raise CommandError(
                    "%s: %s is %r, but the trials in the folder %r had %r. Choose another folder."
                    % (self._sweep.path, name, facts.get(name), self._sweep.folder, value)
                )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes from beginning a trial. Where files have no locks, they may begin one too many."""
        with exclusive(os.path.join(self._sweep.folder, "." + _JOURNAL), _PATIENCE):
            yield

    def seed(self, number: int) -> None:
        """Choose the sampler for a trial."""
        import optuna

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # trials that are being trained count as bad ones, so that others are not near them
            self.study.sampler = optuna.samplers.TPESampler(seed=self._sweep.options.seed + number, constant_liar=True)

    def trials(self) -> list[Any]:
        """Return the trials that have begun, by number; see `optuna.trial.FrozenTrial`."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name != "WAITING"]

    def frozen(self, number: int) -> Any:
        """Return a trial as it is stored."""
        return self.study.get_trials(deepcopy=False)[number]

    def claim(self) -> Optional[Claimed]:
        """Return a trial to train: one whose process has ended, else a new one; None if all are done or being trained.

        Whether a process of another machine lives takes seconds to see, so that is asked when no new trial is left.
        """
        begun = [trial for trial in self.trials() if trial.state.name == "RUNNING"]
        here = [trial for trial in begun if holder_alive(self._model(trial.number)) is False]
        return self._taken_over(here) or self._new() or self._taken_over(begun)

    def _taken_over(self, trials: Iterable[Any]) -> Optional[Claimed]:
        """Return the first of some trials that nobody trains."""
        import optuna

        for trial in trials:
            lock = self._locked(trial.number)
            if lock is None:
                continue
            if self.frozen(trial.number).state.name == "RUNNING":
                # there is no public name for the number within the storage
                return Claimed(self, optuna.trial.Trial(self.study, trial._trial_id), lock)
            lock.release()
        return None

    def _new(self) -> Optional[Claimed]:
        with self._alone():
            if len(self.trials()) >= self._sweep.options.trials:
                return None
            trial = self.study.ask()
            lock = self._locked(trial.number)
        return None if lock is None else Claimed(self, trial, lock)

    def _locked(self, number: int) -> Optional[ModelLock]:
        """Return the lock of a trial, held; None if another process has it."""
        lock = ModelLock(self._model(number))
        try:
            lock.acquire(make_folder=True)
        except CheckpointError as exc:
            if isinstance(exc.__cause__, OSError):
                raise
            return None
        return lock

    def _model(self, number: int) -> str:
        """Return the path whose lock is that of a trial; the model of its training has a lock of its own."""
        return os.path.join(folder_of(self._sweep, number), _NAME)


def _pruner(sweep: Sweep) -> Any:
    """Return what ends trials early: not after the first epoch, and not before others can be compared with."""
    import optuna

    if not sweep.options.prune:
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)


def overrides_of(trial: Any) -> dict[str, Any]:
    """Return what a trial changes in the config."""
    return dict(trial.user_attrs.get(_OVERRIDES, {}))


def why_failed(trial: Any) -> str:
    """Return why a trial has no result."""
    return str(trial.user_attrs.get(_WHY, ""))


def _cut_incomplete(path: str) -> None:
    """Remove the end of a line that a process was writing when it was killed: after it, no line could be read."""
    from optuna.storages.journal import JournalFileSymlinkLock

    if not os.path.exists(path):
        return
    lock = JournalFileSymlinkLock(path)
    lock.acquire()
    try:
        with open(path, "rb+") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
    finally:
        lock.release()
