"""One pass over a dataset: runs a step per batch, collects scores, and accounts for where the time went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence

from returnn_tf.config import DataError
from returnn_tf.engine.prefetch import Prefetcher
from returnn_tf.engine.progress import PassState
from returnn_tf.engine.scores import Scores, batch_means
from returnn_tf.engine.step_errors import naming_sequences
from returnn_tf.engine.step_result import StepResult
from returnn_tf.log import STEP_LEVEL, log, pass_line, step_line, time_shares_line


@dataclass
class PassResult(PassState):
    """What a pass gave."""

    scores: Dict[str, float] = field(default_factory=dict)  # cost:<layer> -> mean
    errors: Dict[str, float] = field(default_factory=dict)  # error:<layer> -> mean

    def times(self) -> Dict[str, float]:
        """Where the time went, for event files: shares of the whole, and speed."""
        if not self.steps or not self.seconds:
            return {}
        return {
            "time/seconds_per_step": self.seconds / self.steps,
            "time/compute_share": self.compute_seconds / self.seconds,
            "time/data_wait_share": self.wait_seconds / self.seconds,
            "time/frames_per_second": self.frames / self.seconds,
        }


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

    def run(self, batches: Iterable[Any], begun: Optional[PassState] = None) -> PassResult:
        """Goes over all batches.

        :param batches: all, or those which are left
        :param begun: what was done of the pass before
        :raises DataError: there is none
        """
        begun = begun or PassState()
        result = PassResult(begun.steps, begun.frames, begun.seconds, begun.compute_seconds, begun.wait_seconds)
        scores = Scores(self.normalized, with_exp=self.with_exp, sums=begun.sums)
        bar = log.progress(self.phase)
        start = time.perf_counter() - begun.seconds
        prefetcher = Prefetcher(batches, lambda batch: self.convert(batch.feed))
        try:
            for batch, tensors in prefetcher:
                before = time.perf_counter()
                with naming_sequences(self.phase, batch.seq_tags):
                    step_result = self.step(tensors, batch)
                now = time.perf_counter()
                del tensors  # freeing them takes longer once the other thread works on the next batch
                result.compute_seconds += now - before
                result.frames += max(batch.num_frames.values(), default=0)
                if step_result.updated:
                    scores.add(step_result)
                self._log_step(batch, step_result, result.steps, now - before, now - start)
                if self.on_step is not None:
                    self.on_step(batch, step_result)
                result.steps += 1
                result.seconds = now - start
                result.wait_seconds = begun.wait_seconds + prefetcher.wait_seconds
                bar.update(result.steps, batch.complete, step_result.total_loss, result.frames)
                if self.between is not None:
                    self.between(result, scores)
        finally:
            bar.close()
            prefetcher.close()
        if not result.steps:
            raise DataError("%s: there is no batch; is every sequence left out by length limits?" % self.phase)
        result.seconds, result.sums = time.perf_counter() - start, scores.sums()
        result.wait_seconds = begun.wait_seconds + prefetcher.wait_seconds
        result.scores, result.errors = scores.scores(), scores.errors()
        log.write(3, pass_line(self.phase, result.steps, result.seconds, result.compute_seconds))
        log.write(
            self.shares_level, time_shares_line(self.phase, result.seconds, result.compute_seconds, result.wait_seconds)
        )
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
