"""Where a training is within an epoch: the batches that are done, and the sums of the scores so far."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Dict, List

from returnn_tf.config import Config, DataError
from returnn_tf.config.settings import Effect, settings_with
from returnn_tf.datasets.core.corpus import SEED_OFFSET_VARIABLE
from returnn_tf.engine.support.fingerprint import settings
from returnn_tf.engine.support.scores import added_sums

Sums = Dict[str, Dict[str, float]]


@dataclass
class PassState:
    """A pass over a dataset up to some batch."""

    steps: int = 0  # done, also those in which only other processes had a batch
    batches: int = 0  # done by this process since the sequences were shared out
    seqs: int = 0  # sequences of its share which these batches reach
    frames: int = 0
    seconds: float = 0.0
    compute_seconds: float = 0.0  # inside of the step functions
    wait_seconds: float = 0.0  # waiting for data
    communication_seconds: float = 0.0  # part of the computing: waiting for other processes, and sending
    sums: Sums = field(default_factory=dict)  # see `Scores.sums`

    @classmethod
    def from_json(cls, value: Any) -> PassState:
        """From the dict of another one; what a subclass adds is left out."""
        known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}
        return cls(**{"batches": known["steps"], **known})


@dataclass
class Progress:
    """A training within an epoch.

    :param epoch: the one being trained
    :param first_step: global step with which it began
    :param passed: what is done of it
    :param ranks: the same for each rank, if there are several
    :param shared: for each time that the number of ranks changed, how many sequences each of those before had done
    :param data: settings by which the number of batches has a meaning, see :func:`data_settings`
    :param facts: of the training data, see `data_facts`; earlier versions stored none
    """

    epoch: int
    first_step: int
    passed: PassState = field(default_factory=PassState)
    ranks: List[PassState] = field(default_factory=list)
    data: Dict[str, str] = field(default_factory=dict)
    shared: List[List[int]] = field(default_factory=list)
    facts: Dict[str, str] = field(default_factory=dict)

    def as_json(self) -> Dict[str, Any]:
        """For a manifest; floats stay exact."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> Progress:
        """The reverse.

        :param where: for the message
        :raises DataError: it is something else
        """
        try:
            ranks = [PassState.from_json(rank) for rank in value["ranks"]]
            found = cls(**dict(value, passed=PassState.from_json(value["passed"]), ranks=ranks))
            for part in (found, found.passed, *ranks):
                _check_counts(part)
            return found
        except (KeyError, TypeError, ValueError) as exc:
            raise DataError("%s: the position within the epoch can't be read: %r" % (where, exc)) from None

    def of_rank(self, rank: int, size: int) -> PassState:
        """What a rank has done.

        :raises DataError: another number of ranks made the checkpoint
        """
        made_by = max(len(self.ranks), 1)
        if made_by != size:
            raise DataError(
                "it was made in the middle of an epoch by %i process%s, and this run has %i: who goes on with which "
                "sequences is not defined" % (made_by, "es" if made_by > 1 else "", size)
            )
        return self.ranks[rank] if self.ranks else self.passed

    def for_ranks(self, size: int, *, common: bool) -> Progress:
        """The position for another number of ranks, which share out the sequences that none had done.

        A sequence that is cut into several batches counts as done with the first of them.

        :param size: number of ranks now
        :param common: whether the sums of each rank are those of all
        :raises DataError: each rank read all sequences, or batches were shuffled
        """
        ranks = self.ranks or [self.passed]
        if len(ranks) == size:
            return self
        if "horovod_dataset_distribution" in self.data or "shuffle_batches" in self.data:
            self.of_rank(0, size)
        total = ranks[0].sums if common else added_sums([state.sums for state in ranks])
        steps = max(state.steps for state in ranks)
        begun = replace(ranks[0], steps=steps, batches=0, seqs=0, sums=total)
        others = begun if common else replace(begun, sums={})
        shared = self.shared + [[state.seqs for state in ranks]]
        return replace(self, passed=begun, ranks=[begun] + [others] * (size - 1), shared=shared)


def _check_counts(part: Any) -> None:
    """
    :param part: Progress or PassState
    :raises TypeError: one of its numbers is none, or a count below 0
    """
    for name, default in [("epoch", 1), ("first_step", 0), *((f.name, f.default) for f in fields(PassState))]:
        value = getattr(part, name, default)
        whole = isinstance(default, int)
        if isinstance(default, (int, float)) and (
            isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or (whole and value < 0)
        ):
            raise TypeError("%s can't be %r" % (name, value))


def data_settings(config: Config) -> Dict[str, str]:
    """The settings which decide what the n-th training batch is, as texts. Folders of files do not count.

    :param config: Config of the epoch
    """
    found = settings(config, settings_with(Effect.ORDER), folders=False)
    if SEED_OFFSET_VARIABLE in os.environ:
        found[SEED_OFFSET_VARIABLE] = os.environ[SEED_OFFSET_VARIABLE]
    return found
