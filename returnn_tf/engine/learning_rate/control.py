"""Learning-rate control: the rate of each epoch, from the config, the scores so far, and the learning-rate file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import RateDataError, RateError, did_you_mean
from returnn_tf.config.settings.learning_rate import LearningRateSettings
from returnn_tf.engine.learning_rate.file import (
    EpochData,
    best_epochs,
    prepare_file,
    read_file,
    scores_of,
    unusable_rate,
    update_file,
)
from returnn_tf.engine.learning_rate.schemes import PastEpoch, Scheme, scheme_from_config
from returnn_tf.logging.log import log


class LearningRateControl:
    """Computes the learning rate of every epoch and keeps the scores that decide about it.

    ``epochs`` maps an epoch to its `EpochData`. With a file name, existing entries are read at the start, and the file
    is rewritten (atomically) whenever scores are set. What other processes write there meanwhile stays in the file, but
    does not change a run: each decides by the scores it has.

    :param scheme: computes rates from scores
    :param given_rates: epochs with a fixed rate, which rates in the file override
    :param measures: names of the deciding score, by preference
    :param filename: the learning-rate file
    """

    def __init__(
        self,
        scheme: Scheme,
        *,
        given_rates: Optional[Mapping[int, float]] = None,
        measures: Optional[list[str]] = None,
        filename: Optional[str] = None,
    ):
        self.scheme = scheme
        self.given_rates = dict(given_rates or {})
        self.measures = list(measures or [])
        self.filename = filename
        self._warned_of_other_measure = False
        self.epochs: dict[int, EpochData] = {}
        self._changed: dict[int, set[str]] = {}  # names of the scores by epoch, since the file was written
        self._new_rates: set[int] = set()
        if filename and os.path.exists(filename):
            self.epochs = read_file(filename)
            _check_rates(filename, self.epochs)

    @classmethod
    def from_config(cls, config: Config) -> LearningRateControl:
        """Return the control configured by ``learning_rate_control`` and related settings.

        :raises ConfigError: for an unknown scheme or settings of a wrong type
        :raises DataError: if there is a learning-rate file which can't be read
        """
        return cls(
            scheme_from_config(config),
            given_rates=given_rates(config),
            measures=LearningRateSettings(config).learning_rate_control_error_measure,
            filename=LearningRateSettings(config).learning_rate_file or None,
        )

    def learning_rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch (from 1): as in the file, as configured, or by the scheme.

        Later calls return the same rate, even if scores have been set in between.
        """
        if epoch not in self.epochs:
            self._warn_of_other_measure(epoch - 1)
            rate = self.given_rates.get(epoch)
            if rate is None:
                rate = self.scheme.next_rate(epoch, self._past(epoch))
            self.set_rate(epoch, rate)
        return self.epochs[epoch].learning_rate

    def set_rate(self, epoch: int, rate: float) -> None:
        """Set the rate of an epoch which has none yet."""
        self.epochs[epoch] = EpochData(rate)
        self._new_rates.add(epoch)

    def _warn_of_other_measure(self, epoch: int) -> None:
        """Warn once if an epoch lacks all of the deciding scores, so that another one decides."""
        deciding = self.error_key(epoch)
        if not self.measures or deciding is None or self._warned_of_other_measure:
            return
        if deciding not in _spellings(self.measures):
            self._warned_of_other_measure = True
            hint = did_you_mean(self.measures[0], scores_of(self.epochs[epoch].error))
            log.warn(
                "learning_rate_control_error_measure: epoch %d has no score %s, so %s decides. %s"
                % (epoch, " or ".join(map(repr, self.measures)), deciding, hint)
            )

    def add_epochs(self, epochs: Mapping[int, EpochData]) -> list[int]:
        """Add the epochs which are not known yet.

        :return: the added ones
        """
        added = sorted(epoch for epoch in epochs if epoch not in self.epochs)
        self.epochs.update({epoch: epochs[epoch] for epoch in added})
        return added

    def _past(self, epoch: int) -> list[PastEpoch]:
        past = []
        for e in sorted(e for e in set(self.epochs) | set(self.given_rates) if e < epoch):
            data = self.epochs.get(e) or EpochData(self.given_rates[e])
            past.append(PastEpoch(e, data.learning_rate, scores_of(data.error), self.error_key(e)))
        return past

    def set_errors(self, epoch: int, errors: Optional[Mapping[str, Any]]) -> None:
        """Add scores of an epoch, and write the file.

        :param epoch: from 1
        :param errors: "<dataset>_score", "<dataset>_error" or ":meta:..." -> number; or a dict with one number for each
            loss, ``{"dev_score": {"cost:a": 1., "cost:b": 2.}}``, which becomes dev_score_a and dev_score_b (with a
            single loss just dev_score)
        """
        self.learning_rate(epoch)
        for name, value in (errors or {}).items():
            found = _flattened(name, value)
            self.epochs[epoch].error.update(found)
            self._changed.setdefault(epoch, set()).update(found)
        self.save()

    def prepare(self) -> None:
        """Create the folder of the file and check that the file can be written.

        :raises ConfigError: it can't be written
        """
        if self.filename:
            prepare_file(self.filename)

    def save(self) -> None:
        """Write what has changed to the file, if one is configured.

        :raises DataError: the disk is full
        :raises ConfigError: it can't be written for another reason
        """
        if self.filename:
            update_file(self.filename, self._merged)
            self._changed.clear()
            self._new_rates.clear()

    def _merged(self, stored: Mapping[int, EpochData]) -> dict[int, EpochData]:
        """Return all epochs: changes by this process take precedence over the file."""
        merged = dict(stored)
        for epoch, mine in self.epochs.items():
            there = stored.get(epoch, EpochData(mine.learning_rate))
            changed = {name: mine.error[name] for name in self._changed.get(epoch, ())}
            rate = mine.learning_rate if epoch in self._new_rates else there.learning_rate
            merged[epoch] = EpochData(rate, {**mine.error, **there.error, **changed})
        return merged

    def error_key(self, epoch: int) -> Optional[str]:
        """Return the name of the deciding score of an epoch; None if it has no scores."""
        data = self.epochs.get(epoch)
        return choose_measure(data.error, self.measures) if data else None

    def last_best_epoch(
        self,
        last_epoch: Optional[int] = None,
        *,
        first_epoch: int = 1,
        filter_score: float = float("inf"),
        only_last_n: int = -1,
        min_score_dist: float = 0.0,
    ) -> Optional[int]:
        """Return the best epoch before ``last_epoch`` if it is better than that one, else None.

        :param last_epoch: default: the last one with scores
        :param first_epoch: earlier epochs are ignored
        :param filter_score: only epochs with a lower score are considered
        :param only_last_n: if not negative, the number of epochs before ``last_epoch`` that are considered
        :param min_score_dist: minimum improvement, exclusive
        """
        if last_epoch is None:
            last_epoch = max((e for e, d in self.epochs.items() if scores_of(d.error)), default=0)
        key = self.error_key(last_epoch)
        if key is None:
            return None
        last_score = self.epochs[last_epoch].error[key]
        if only_last_n >= 0:
            first_epoch = max(first_epoch, last_epoch - only_last_n)
        for epoch in best_epochs(self.epochs, key):
            score = self.epochs[epoch].error[key]
            if not first_epoch <= epoch < last_epoch:
                continue
            return epoch if score < min(filter_score, last_score - min_score_dist) else None
        return None


def choose_measure(error: Mapping[str, Any], measures: list[str]) -> Optional[str]:
    """Return the name of the deciding score: the first of ``measures`` with a value, else the closest to dev_score.

    :param error: scores of an epoch
    :param measures: by preference; also tried with "_output" appended
    """
    names = sorted(scores_of(error))
    for name in _spellings([*measures, "dev_score"]):
        if name in names:
            return name
    for prefix in ("dev_score_output/output", "dev_score_output/", "dev_"):
        for name in names:
            if name.startswith(prefix):
                return name
    for name in ("train_score", "train_score_output"):
        if name in names:
            return name
    return names[0] if names else None


def _spellings(measures: list[str]) -> list[str]:
    return [name for measure in measures for name in (measure, measure + "_output")]


def _flattened(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: _plain(value)}
    if len(value) == 1:
        return {name: _plain(next(iter(value.values())))}
    return {"%s_%s" % (name, _loss_name(key)): _plain(number) for key, number in value.items()}


def _loss_name(key: str) -> str:
    kind, _, name = key.partition(":")
    return name if kind in ("cost", "error") and name else key


def _plain(number: Any) -> Any:
    return number.item() if hasattr(number, "item") else number


def _check_rates(filename: str, epochs: Mapping[int, EpochData]) -> None:
    for epoch, data in sorted(epochs.items()):
        reason = unusable_rate(data.learning_rate)
        if reason is not None:
            raise RateDataError(
                "learning-rate file %s: the rate of epoch %d, %s, %s. Correct it, or remove the entry"
                % (filename, epoch, data.learning_rate, reason)
            )


def given_rates(config: Config) -> dict[int, float]:
    """Return the rates of ``learning_rates`` by epoch."""
    settings = LearningRateSettings(config)
    rates = settings.learning_rates
    if not rates:
        return {}
    if not isinstance(rates, (dict, list, tuple)):
        rates = [rates]
    items = rates.items() if isinstance(rates, dict) else enumerate(rates, 1)
    where = settings.describe_source("learning_rates")
    try:
        found = {int(epoch): float(rate) for epoch, rate in items}
    except (TypeError, ValueError, OverflowError):
        raise RateError("%s: expected a list of rates or a dict epoch -> rate, got %r" % (where, rates)) from None
    for epoch, rate in sorted(found.items()):
        reason = unusable_rate(rate)
        if reason is not None:
            raise RateError("%s: the rate of epoch %d, %s, %s" % (where, epoch, rate, reason))
    return found
