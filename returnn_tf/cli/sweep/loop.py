"""Trains the trials of a sweep, some at a time, until all are done or a signal comes."""

from __future__ import annotations

import contextlib
import select
import signal
from typing import Optional

from returnn_tf.cli.shared.children import ReceivedSignals
from returnn_tf.cli.sweep.description import Sweep, command_of, values_text
from returnn_tf.cli.sweep.study import Claimed, Study, why_failed
from returnn_tf.cli.sweep.training import TrialTraining
from returnn_tf.config.errors import CommandDataError
from returnn_tf.engine.distributed.cores import share_of_cores
from returnn_tf.engine.support.signals import name_of

_SECONDS = 0.5  # between two looks at the learning-rate files
_FAILURES = 3  # of the first trials, after which the sweep ends


class _Running:
    """A trial that is being trained."""

    def __init__(self, sweep: Sweep, claimed: Claimed, threads: Optional[int]) -> None:
        self.claimed = claimed
        self.pruned = False
        self._metric = sweep.options.metric
        overrides = claimed.overrides(sweep)
        say(claimed.number, values_text(overrides))
        self.training = TrialTraining(sweep, claimed.number, overrides, threads)

    def look(self, stopping: bool) -> bool:
        """Report new scores, prune, and store the result of an ended training; return whether it has ended.

        :param stopping: a signal has told all to stop, so that the trial goes on another time
        """
        code = self.training.ended()
        metrics = self.training.metrics()
        new = [epoch for epoch, value in metrics.items() if self.claimed.report(epoch, value)]
        number = self.claimed.number
        if code is None:
            if new and not (stopping or self.pruned) and self.claimed.should_be_pruned():
                self.pruned = True
                self.training.send(signal.SIGTERM)
            return False
        if self.pruned:
            self.claimed.pruned()
            last = max(metrics)
            say(number, "pruned after epoch %d, %s %.6g" % (last, self._metric, metrics[last]))
        elif code == 0 and metrics:
            best = min(metrics, key=lambda epoch: (metrics[epoch], epoch))
            self.claimed.completed(metrics[best])
            say(number, "%s %.6g (epoch %d)" % (self._metric, metrics[best], best))
        elif stopping:
            self.claimed.release()
            say(number, "stopped; the next call goes on with it")
        else:
            why = "killed by %s" % name_of(-code) if code < 0 else self.training.error()
            why = "no epoch has a finite %s" % self._metric if code == 0 else why
            self.claimed.failed(why)
            say(number, "failed: %s; see %s" % (why, self.training.log))
        return True


def train_trials(sweep: Sweep, study: Study, processes: int) -> int:
    """Train trials until none is left.

    :param processes: trials at a time
    :return: 0, or 128 + the signal that stopped it
    :raises ConfigError: a value can't be used, or there is no score with the name of the metric
    :raises DataError: all of the first trials fail
    """
    threads = share_of_cores(processes) if processes > 1 else None
    running: list[_Running] = []
    stopped: Optional[int] = None
    with ReceivedSignals() as signals, contextlib.ExitStack() as stack:
        stack.callback(_end, running)
        while True:
            while stopped is None and len(running) < processes:
                claimed = study.claim()
                if claimed is None:
                    break
                try:
                    running.append(_Running(sweep, claimed, threads))
                except BaseException:
                    claimed.release()
                    raise
            if not running:
                return 0 if stopped is None else 128 + stopped
            select.select([signals.pipe], [], [], _SECONDS)
            for number in signals.received():
                if stopped is None:
                    print("sweep: %s: the trainings save and end" % name_of(number), flush=True)
                stopped = number
                for each in running:
                    each.training.send(number)
            running[:] = [each for each in running if not each.look(stopped is not None)]
            _check_failures(sweep, study)


def _end(running: list[_Running]) -> None:
    """Kill trainings that are left after an error; their trials go on another time."""
    for each in running:
        each.training.kill()
        each.claimed.release()


def _check_failures(sweep: Sweep, study: Study) -> None:
    """Raise if nothing but failures came out."""
    trials = study.trials()
    failed = [trial for trial in trials if trial.state.name == "FAIL"]
    if len(failed) >= _FAILURES and not any(trial.state.name in ("COMPLETE", "PRUNED") for trial in trials):
        raise CommandDataError(
            "sweep: the first %d trials have failed, the last one by: %s. To see more, train it by itself: %s. Remove "
            "the folder %r before the sweep begins again."
            % (len(failed), why_failed(failed[-1]), command_of(sweep, failed[-1].number), sweep.folder)
        )


def say(number: int, text: str) -> None:
    """Print a line on a trial."""
    print("trial %d: %s" % (number, text), flush=True)
