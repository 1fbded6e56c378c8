"""One pass over a dataset: the common part of training, evaluation, search and forwarding."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, NamedTuple, Optional, TypeVar

from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.datasets import Dataset
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes.dump import Dump
from returnn_tf.engine.passes.progress import PassState
from returnn_tf.engine.support.prefetch import Prefetcher
from returnn_tf.engine.support.step_errors import naming_sequences
from returnn_tf.logging.levels import STEP_LEVEL
from returnn_tf.logging.lines import Setup, pass_line, step_line
from returnn_tf.logging.log import log

Result = TypeVar("Result")
Converted = tuple[Any, Any]  # batch, tensors


class Step(NamedTuple):
    """A finished step."""

    batch: Any
    result: Any
    number: int  # from 0
    seconds: float  # of this step
    elapsed: float  # since the pass began
    setup: Setup  # the steps so far in which a graph was made


@dataclass
class DatasetPass(Generic[Result]):
    """Runs a step per batch: prefetches, names the sequences in errors, shows progress, accounts for time.

    :param phase: text for the log, e.g. ``train epoch 3``
    :param convert: feed of a batch -> tensors; runs in another thread
    :param step: tensors, batch -> result of the step
    :param world: the processes which share the batches; their watchdog sees the steps
    :param dump: where the values of layers such as hdf_dump go; then the results have them as ``sinks``
    :param join: (batch, tensors) of this process -> those of its steps, if all processes step together
    :param shows_progress: whether there is a progress bar
    """

    phase: str
    convert: Callable[[Mapping[str, Any]], Any]
    step: Callable[[Any, Any], Result]
    world: World = field(default_factory=World)
    join: Callable[[Iterable[Converted]], Iterable[Converted]] = iter
    dump: Optional[Dump] = None
    shows_progress: bool = True

    def scores_of(self, result: Result) -> Mapping[str, float]:
        """Return the scores for the progress bar, by loss."""
        return {}

    def communication_of(self, result: Result) -> float:
        """Return the seconds of a step in which this process waited for others or sent data."""
        return 0.0

    def steps(self, batches: Iterable[Any], state: PassState) -> Generator[Step, None, None]:
        """Yield the steps lazily. The generator must be closed (`contextlib.closing`).

        :param batches: all, or the remaining ones
        :param state: what is done of the pass already; kept up to date, except for the sums
        :raises DataError: an op failed
        """
        dumping = contextlib.nullcontext() if self.dump is None else self.dump.opened(self.phase, state.steps)
        with dumping:
            yield from self._steps(batches, state)

    def _steps(self, batches: Iterable[Any], state: PassState) -> Generator[Step, None, None]:
        waited = state.wait_seconds
        setup, share = Setup(state.setup_seconds, 0.0, state.setup_frames), 0.0
        complete: Optional[float] = None if state.steps else 0.0  # unknown where an earlier run stopped
        start = time.perf_counter() - state.seconds
        bar = log.progress(self.phase) if self.shows_progress else None
        self.world.heartbeat.long_phase(self.phase)
        prefetcher = Prefetcher(batches, lambda batch: self.convert(batch.feed))
        try:
            for batch, tensors in self.join(prefetcher):
                before, made = time.perf_counter(), FeedFunction.graphs_made
                with naming_sequences(self.phase, batch.seq_tags):
                    result = self.step(tensors, batch)
                    if self.dump is not None:
                        self.dump.write(batch, result.sinks)  # type: ignore[attr-defined]
                now = time.perf_counter()
                del tensors  # freeing is slower once the other thread works on the next batch
                self.world.heartbeat.step_done(self.phase)
                state.steps += 1
                if batch.seq_tags:
                    state.batches, state.seqs = state.batches + 1, _last_sequence(batch) + 1
                    state.resume = batch.resume
                frames = max(batch.num_frames.values(), default=0)
                state.frames += frames
                state.seconds = now - start
                if FeedFunction.graphs_made == made:
                    state.compute_seconds += now - before
                    state.communication_seconds += self.communication_of(result)
                else:
                    state.setup_seconds += now - before
                    state.setup_frames += frames
                    state.setup_steps += 1
                    if complete is not None and batch.complete is not None:
                        share += batch.complete - complete
                    setup = Setup(state.setup_seconds, share, state.setup_frames)
                complete = batch.complete
                state.wait_seconds = waited + prefetcher.wait_seconds
                if bar is not None:
                    bar.update(state.steps, batch.complete, self.scores_of(result), state.frames, setup)
                yield Step(batch, result, state.steps - 1, now - before, state.seconds, setup)
        finally:
            if bar is not None:
                bar.close()
            prefetcher.close()
        self.world.heartbeat.long_phase("after %s" % self.phase)
        state.seconds = time.perf_counter() - start
        state.wait_seconds = waited + prefetcher.wait_seconds

    def log_step(self, step: Step, values: Callable[[], Mapping[str, Any]]) -> None:
        """Log the line of a step with these numbers, if it is shown anywhere."""
        if log.shows(STEP_LEVEL):
            line = step_line(
                self.phase,
                step.number,
                values(),
                seconds_per_step=step.seconds,
                elapsed=step.elapsed,
                complete=step.batch.complete,
                setup=step.setup,
            )
            log.write(STEP_LEVEL, line)

    def log_end(self, state: PassState) -> None:
        """Log the line at the end of the pass."""
        log.write(3, pass_line(self.phase, state.steps, state.seconds, state.compute_seconds))


def steps_over_sequences(
    one_pass: DatasetPass[Result], dataset: Dataset, epoch: int, keys: Sequence[str], *, first: int = 0, **options: Any
) -> Generator[Step, None, None]:
    """Yield the steps of a pass over a dataset, in batches of whole sequences without limits that leave some out.

    The generator must be closed (`contextlib.closing`).

    :param keys: the data keys that the steps need
    :param first: number of batches to skip
    :param options: of `Dataset.batches`, for the size of the batches and the choice of sequences
    :raises DataError: an op failed
    """
    whole: dict[str, Any] = {"chunking": None, "context_window": None}
    batches = dataset.batches(epoch, used_data_keys=list(keys), start_batch=first, **whole, **options)
    return one_pass.steps(batches, PassState())


def batch_sizes(batch: Any) -> dict[str, int]:
    """Return the sizes of a batch by name, for the line of a step."""
    return {**{"max_size:%s" % key: size for key, size in batch.max_frames.items()}, "num_seqs": batch.num_seqs}


def _last_sequence(batch: Any) -> int:
    """Return the last position within the order of the epoch that occurs in a batch."""
    return max(int(position) for parts in batch.slices.values() for position, _, _ in parts)
