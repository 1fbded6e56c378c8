"""Position of training within an epoch: the batches done, and the sums of the scores so far."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Optional

from returnn_tf.config import Config
from returnn_tf.config.errors import SettingDataError
from returnn_tf.config.settings import Effect, settings_with
from returnn_tf.config.settings.distributed import SEED, SHARD
from returnn_tf.datasets.core.seq_order import SEED_OFFSET_VARIABLE
from returnn_tf.engine.distributed.options import is_distributed, options_of
from returnn_tf.engine.support.fingerprint import as_text, settings
from returnn_tf.engine.support.scores import added_sums

Sums = dict[str, dict[str, float]]


@dataclass
class PassState:
    """State of a pass over a dataset after some batch."""

    steps: int = 0  # done, including those in which only other processes had a batch
    batches: int = 0  # done by this process since the sequences were last split
    seqs: int = 0  # sequences of its shard covered by these batches
    resume: Optional[dict[str, Any]] = None  # of the last of these batches, see `Batch.resume`
    frames: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0  # inside of the step functions
    wait_seconds: float = 0.0  # waiting for data
    communication_seconds: float = 0.0  # part of the computing time: waiting for other processes, and sending
    setup_seconds: float = 0.0  # of steps in which a graph was made and compiled: no part of the computing time
    setup_frames: int = 0  # in these steps
    setup_steps: int = 0  # their number
    sums: Sums = field(default_factory=dict)  # see `Scores.sums`

    @property
    def frames_per_second(self) -> Optional[float]:
        """Return the frames per second of the steps in which no graph was made, or None."""
        seconds = self.seconds - self.setup_seconds
        return (self.frames - self.setup_frames) / seconds if self.frames > self.setup_frames and seconds > 0 else None

    @property
    def seconds_per_step(self) -> Optional[float]:
        """Return the seconds per step of the steps in which no graph was made, or None."""
        steps = self.steps - self.setup_steps
        return (self.seconds - self.setup_seconds) / steps if steps > 0 else None

    @classmethod
    def from_json(cls, value: Any) -> PassState:
        """Return the state of a dict; ignore fields added by subclasses."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        return cls(**{"batches": known["steps"], **known})


@dataclass
class Progress:
    """State of training within an epoch.

    :param epoch: the one being trained
    :param first_step: global step at which it started
    :param passed: what is done of it
    :param ranks: the same for each rank, if there are several
    :param shared: for each change of the number of ranks, how many sequences each of the earlier ranks had done
    :param data: settings which determine the batches, see `data_settings`
    :param facts: of the training data, see `data_facts`; earlier versions stored none
    """

    epoch: int
    first_step: int
    passed: PassState = field(default_factory=PassState)
    ranks: list[PassState] = field(default_factory=list)
    data: dict[str, str] = field(default_factory=dict)
    shared: list[list[int]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return a dict for a manifest; floats stay exact."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Progress:
        """Return the progress of a dict of `as_json`.

        :raises DataError: it is not such a dict
        """
        try:
            ranks = [PassState.from_json(rank) for rank in value["ranks"]]
            found = cls(**dict(value, passed=PassState.from_json(value["passed"]), ranks=ranks))
            for part in (found, found.passed, *ranks):
                _check_counts(part)
            return found
        except (KeyError, TypeError, ValueError) as exc:
            raise SettingDataError("%s: the position within the epoch can't be read: %r" % (where, exc)) from None

    def of_rank(self, rank: int, size: int) -> PassState:
        """Return the state of a rank.

        :raises DataError: the checkpoint was written by another number of ranks
        """
        made_by = max(len(self.ranks), 1)
        if made_by != size:
            raise SettingDataError(
                "it was made in the middle of an epoch by %i process%s, and this run has %i: the remaining sequences "
                "of each process are not defined" % (made_by, "es" if made_by > 1 else "", size)
            )
        return self.ranks[rank] if self.ranks else self.passed

    def for_ranks(self, size: int, *, common: bool) -> Progress:
        """Return the position for another number of ranks, which share the remaining sequences.

        A sequence that is cut into several batches counts as done with the first of them.

        :param size: number of ranks now
        :param common: whether the sums of each rank are the totals already
        :raises DataError: each rank read all sequences, or batches were shuffled
        """
        ranks = self.ranks or [self.passed]
        if len(ranks) == size:
            return self
        if SEED in self.data.get("horovod_dataset_distribution", "") or "shuffle_batches" in self.data:
            self.of_rank(0, size)
        total = ranks[0].sums if common else added_sums([state.sums for state in ranks])
        steps = max(state.steps for state in ranks)
        begun = replace(ranks[0], steps=steps, batches=0, seqs=0, resume=None, sums=total)
        others = begun if common else replace(begun, sums={})
        shared = self.shared + [[state.seqs for state in ranks]]
        return replace(self, passed=begun, ranks=[begun] + [others] * (size - 1), shared=shared)


def _check_counts(part: Any) -> None:
    """Check the types of all numbers and the ranges of the counts.

    :param part: Progress or PassState
    :raises TypeError: a field is not a number, or a count is negative
    """
    for name, default in [("epoch", 1), ("first_step", 0), *((f.name, f.default) for f in fields(PassState))]:
        value = getattr(part, name, default)
        whole = isinstance(default, int)
        if isinstance(default, (int, float)) and (
            isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or (whole and value < 0)
        ):
            raise TypeError("%s can't be %r" % (name, value))
    resume = getattr(part, "resume", None)
    if not isinstance(resume, (dict, type(None))):
        raise TypeError("resume can't be %r" % (resume,))


def data_settings(config: Config) -> dict[str, str]:
    """Return, as texts, the settings of an epoch which determine the n-th training batch. Folders are ignored."""
    found = settings(config, settings_with(Effect.ORDER), folders=False)
    if is_distributed(config):  # by whichever setting, under the names that older checkpoints have
        found["use_horovod"] = as_text(True)
        if options_of(config).data != SHARD:
            found["horovod_dataset_distribution"] = as_text(options_of(config).data)
    if SEED_OFFSET_VARIABLE in os.environ:
        found[SEED_OFFSET_VARIABLE] = os.environ[SEED_OFFSET_VARIABLE]
    return found
