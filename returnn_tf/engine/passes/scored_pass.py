"""A pass over a dataset which sums up losses and errors: a training epoch, or an evaluation."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Optional

from returnn_tf.config.errors import BatchDataError, SettingDataError
from returnn_tf.engine.passes import ranks_report
from returnn_tf.engine.passes.dataset_pass import DatasetPass, batch_sizes
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.engine.support.devices import memory_bytes
from returnn_tf.engine.support.scores import COST, Scores, added_sums, batch_means
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.logging.text import bytes_text


@dataclass
class PassResult(PassState):
    """Result of a pass: its state, and the scores."""

    scores: dict[str, float] = field(default_factory=dict)  # cost:<layer> -> mean
    errors: dict[str, float] = field(default_factory=dict)  # error:<layer> -> mean
    by_rank: list[PassState] = field(default_factory=list)  # what each process did

    def speed(self) -> dict[str, float]:
        """Return frames per second, and the shares of the time that computing and waiting for data took."""
        if not self.steps or not self.seconds:
            return {}
        shares = {
            "compute_share": self.compute_seconds / self.seconds,
            "data_wait_share": self.wait_seconds / self.seconds,
        }
        rate = self.frames_per_second
        return shares if rate is None else {"frames_per_second": rate, **shares}

    def times(self) -> dict[str, float]:
        """Return fractions of the total time, and speed, for event files."""
        if not self.steps or not self.seconds:
            return {}
        shares = {"time/%s" % name: value for name, value in self.speed().items()}
        step = self.seconds_per_step
        shares = shares if step is None else {"time/seconds_per_step": step, **shares}
        return {**shares, **ranks_report.values(self.by_rank)}


@dataclass
class ScoredPass(DatasetPass[StepResult]):
    """A pass whose steps give losses and errors: a training epoch or an evaluation.

    :param normalized: losses which are means over the batch already
    :param with_exp: option ``calculate_exp_loss``
    :param log_batch_size: option: sizes in the lines of the steps
    :param log_memory_usage: option ``tf_log_memory_usage``: memory in the lines of the steps
    :param ranks_level: log level of the lines with the times of each process
    :param on_step: called after each step with batch and result, e.g. for event files
    :param between: called between the steps with the result so far (without scores) and the sums; may end the pass
        with an exception
    :param common_sums: the results of a step are summed over all processes already
    """

    normalized: Sequence[str] = ()
    with_exp: bool = False
    log_batch_size: bool = False
    log_memory_usage: bool = False
    ranks_level: int = 4
    on_step: Optional[Callable[[Any, StepResult], None]] = None
    between: Optional[Callable[[PassResult, Scores], None]] = None
    common_sums: bool = False

    def scores_of(self, result: StepResult) -> Mapping[str, float]:
        """Return the scores, as in the lines of epochs."""
        means = batch_means(result, self.normalized)
        return {name: value for name, value in means.items() if name.startswith(COST)}

    def communication_of(self, result: StepResult) -> float:
        """Return the measured communication time."""
        return result.communication

    def run(self, batches: Iterable[Any], begun: Optional[PassState] = None) -> PassResult:
        """Run a step for each batch, and return the scores.

        :param batches: all, or the remaining ones
        :param begun: what is done of the pass already
        :raises DataError: there is no batch
        """
        begun = begun or PassState()
        result = PassResult(**{**asdict(begun), "sums": {}})
        scores = Scores(self.normalized, with_exp=self.with_exp, sums=begun.sums)
        with contextlib.closing(self.steps(batches, result)) as steps:
            for step in steps:
                if step.result.updated:
                    scores.add(step.result)
                self.log_step(step, functools.partial(self._values, step.batch, step.result))
                if self.on_step is not None:
                    self.on_step(step.batch, step.result)
                if self.between is not None:
                    self.between(result, scores)
        result.sums = scores.sums()
        return self._finished(result)

    def _finished(self, result: PassResult) -> PassResult:
        """Combine the results of all processes, and log how the time was spent.

        :raises DataError: there was no batch, or no frame in any of them
        """
        by_rank = ranks_report.gather(self.world, result)
        if not any(state.steps for state in by_rank):
            raise BatchDataError(
                "%s: there is no batch. Either the dataset has no sequences, or max_seq_length or min_seq_length (in "
                "frames) leave all of them out: compare with the lengths in returnn-tf data info." % self.phase,
            )
        if not any(state.frames for state in by_rank):
            raise SettingDataError("%s: all sequences are empty, so there is no score. Check the dataset." % self.phase)
        if not self.common_sums:
            result.sums = added_sums([state.sums for state in by_rank])
        scores = Scores(self.normalized, with_exp=self.with_exp, sums=result.sums)
        result.scores, result.errors = scores.scores(), scores.errors()
        result.by_rank = by_rank
        self.log_end(result)
        ranks_report.write(self.phase, self.world, by_rank, self.ranks_level)
        return result

    def _values(self, batch: Any, result: StepResult) -> dict[str, Any]:
        values: dict[str, Any] = {"loss": result.total_loss, **batch_means(result, self.normalized)}
        if self.log_batch_size:
            values.update(batch_sizes(batch))
        if self.log_memory_usage:
            values.update({"mem_usage:%s" % name: bytes_text(value) for name, value in memory_bytes().items()})
        return values
