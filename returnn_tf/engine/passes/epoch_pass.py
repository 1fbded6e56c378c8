"""One pass over a dataset: runs a step per batch, collects scores, and accounts for where the time went."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from returnn_tf.config import DataError
from returnn_tf.engine.distributed.world import World, alone
from returnn_tf.engine.passes import ranks_report
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.engine.support.prefetch import Prefetcher
from returnn_tf.engine.support.scores import Scores, added_sums, batch_means
from returnn_tf.engine.support.step_errors import naming_sequences
from returnn_tf.engine.support.step_result import StepResult
from returnn_tf.log import STEP_LEVEL, log, pass_line, step_line, time_shares_line


@dataclass
class PassResult(PassState):
    """What a pass gave."""

    scores: Dict[str, float] = field(default_factory=dict)  # cost:<layer> -> mean
    errors: Dict[str, float] = field(default_factory=dict)  # error:<layer> -> mean
    by_rank: List[PassState] = field(default_factory=list)  # what each process did

    def times(self) -> Dict[str, float]:
        """Where the time went, for event files: shares of the whole, and speed."""
        if not self.steps or not self.seconds:
            return {}
        values = {
            "time/seconds_per_step": self.seconds / self.steps,
            "time/compute_share": self.compute_seconds / self.seconds,
            "time/data_wait_share": self.wait_seconds / self.seconds,
            "time/frames_per_second": self.frames / self.seconds,
        }
        return {**values, **ranks_report.values(self.by_rank)}


@dataclass
class Pass:
    """How to go over a dataset.

    :param phase: words for the log, e.g. ``train epoch 3``
    :param convert: feed of a batch -> tensors; runs in another thread
    :param step: tensors, batch -> result of the step
    :param normalized: losses which are means over the batch already
    :param with_exp: option ``calculate_exp_loss``
    :param log_batch_size: option: sizes in the lines of the steps
    :param shares_level: log level of the line that says where the time went
    :param on_step: called after each step with batch and result, e.g. for event files
    :param between: called between the steps with the result so far (without scores) and the sums; may end the pass by
        an exception
    :param world: the processes which share the batches
    :param together: (batch, tensors) of this process -> those for which it does a step, where all do them together
    :param common_sums: the results of a step are those of all processes already
    """

    phase: str
    convert: Callable[[Mapping[str, Any]], Any]
    step: Callable[[Any, Any], StepResult]
    normalized: Sequence[str] = ()
    with_exp: bool = False
    log_batch_size: bool = False
    shares_level: int = 4
    on_step: Optional[Callable[[Any, StepResult], None]] = None
    between: Optional[Callable[[PassResult, Scores], None]] = None
    world: World = field(default_factory=alone)
    together: Callable[[Iterable[Any]], Iterable[Any]] = iter
    common_sums: bool = False

    def run(self, batches: Iterable[Any], begun: Optional[PassState] = None) -> PassResult:
        """Goes over all batches.

        :param batches: all, or those which are left
        :param begun: what was done of the pass before
        :raises DataError: there is none
        """
        begun = begun or PassState()
        result = PassResult(**{**asdict(begun), "sums": {}})
        scores = Scores(self.normalized, with_exp=self.with_exp, sums=begun.sums)
        bar = log.progress(self.phase)
        self.world.board.lasting(self.phase)
        start = time.perf_counter() - begun.seconds
        prefetcher = Prefetcher(batches, lambda batch: self.convert(batch.feed))
        try:
            for batch, tensors in self.together(prefetcher):
                before = time.perf_counter()
                with naming_sequences(self.phase, batch.seq_tags):
                    step_result = self.step(tensors, batch)
                now = time.perf_counter()
                del tensors  # freeing them takes longer once the other thread works on the next batch
                result.compute_seconds += now - before
                result.frames += max(batch.num_frames.values(), default=0)
                result.communication_seconds += step_result.communication
                if step_result.updated:
                    scores.add(step_result)
                self._log_step(batch, step_result, result.steps, now - before, now - start)
                self.world.board.done(self.phase)
                if self.on_step is not None:
                    self.on_step(batch, step_result)
                result.steps += 1
                if batch.seq_tags:
                    result.batches, result.seqs = result.batches + 1, _last_sequence(batch) + 1
                result.seconds = now - start
                result.wait_seconds = begun.wait_seconds + prefetcher.wait_seconds
                bar.update(result.steps, batch.complete, step_result.total_loss, result.frames)
                if self.between is not None:
                    self.between(result, scores)
        finally:
            bar.close()
            prefetcher.close()
        result.seconds, result.sums = time.perf_counter() - start, scores.sums()
        result.wait_seconds = begun.wait_seconds + prefetcher.wait_seconds
        return self._finished(result)

    def _finished(self, result: PassResult) -> PassResult:
        """Puts the results of all processes together, and tells where the time went.

        :raises DataError: there was no batch, or no frame in any of them
        """
        self.world.board.lasting("after %s" % self.phase)
        by_rank = ranks_report.gather(self.world, result)
        if not any(state.steps for state in by_rank):
            raise DataError("%s: there is no batch; is every sequence left out by length limits?" % self.phase)
        if not any(state.frames for state in by_rank):
            raise DataError("%s: all sequences are empty, so there is no score. Look at the dataset." % self.phase)
        if not self.common_sums:
            result.sums = added_sums([state.sums for state in by_rank])
        scores = Scores(self.normalized, with_exp=self.with_exp, sums=result.sums)
        result.scores, result.errors = scores.scores(), scores.errors()
        result.by_rank = by_rank
        log.write(3, pass_line(self.phase, result.steps, result.seconds, result.compute_seconds))
        log.write(
            self.shares_level, time_shares_line(self.phase, result.seconds, result.compute_seconds, result.wait_seconds)
        )
        ranks_report.write(self.phase, self.world, by_rank, self.shares_level)
        return result

    def _log_step(self, batch: Any, result: StepResult, number: int, seconds: float, elapsed: float) -> None:
        if not log.shows(STEP_LEVEL):
            return
        values: Dict[str, Any] = {"loss": result.total_loss, **batch_means(result, self.normalized)}
        if self.log_batch_size:
            values.update({"max_size:%s" % key: size for key, size in batch.max_frames.items()})
            values["num_seqs"] = batch.num_seqs
        line = step_line(self.phase, number, values, seconds_per_step=seconds, elapsed=elapsed, complete=batch.complete)
        log.write(STEP_LEVEL, line)


def _last_sequence(batch: Any) -> int:
    """The last position in the order of the epoch which is in a batch."""
    return max(position for parts in batch.slices.values() for position, _, _ in parts)
