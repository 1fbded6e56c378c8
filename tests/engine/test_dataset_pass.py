"""What all passes over a dataset share: accounting, errors which name the sequences, progress, heartbeat, closing."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from returnn_tf.compiler.feed_function import FeedFunction
from returnn_tf.config import DataError
from returnn_tf.datasets.core.batches.batch import Batch
from returnn_tf.engine.distributed.world import World
from returnn_tf.engine.passes import ranks_report
from returnn_tf.engine.passes.dataset_pass import DatasetPass, batch_sizes
from returnn_tf.engine.passes.progress import PassState, Progress
from returnn_tf.logging.log import log
from returnn_tf.util.lazy_tf import tf


def batches(number: int = 3) -> list[Batch]:
    return [
        Batch(
            feed={"data": index},
            slices={"data": [(2 * index, 0, 5), (2 * index + 1, 0, 3)]},
            rows=[(0, 0), (1, 0)],
            seq_tags=["seq-%d" % (2 * index), "seq-%d" % (2 * index + 1)],
            seq_indices=[2 * index, 2 * index + 1],
            num_frames={"data": 8, "classes": 2},
            number=index,
            complete=(index + 1) / number,
        )
        for index in range(number)
    ]


class Doubling(DatasetPass[int]):
    """Steps with the value 2 * the feed of the batch."""

    def communication_of(self, result: int) -> float:
        return float(result)


def a_pass(step: Any = lambda tensors, batch: tensors["data"] * 2, **options: Any) -> Doubling:
    return Doubling("train epoch 3", dict, step, **options)


def prefetching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prefetch"]


def test_the_state_has_what_the_next_batch_needs() -> None:
    """Also after it was stored and read; for another number of ranks, it does not apply."""
    given = [replace(batch, resume={"plan": [batch.number, 5, 0]}) for batch in batches()]
    state = PassState()
    assert [state.resume for _ in a_pass().steps(given, state)] == [{"plan": [n, 5, 0]} for n in range(3)]
    stored = json.loads(json.dumps(Progress(epoch=1, first_step=0, passed=state).as_json()))
    read = Progress.from_json(stored, "here")
    assert read.passed.resume == state.resume and read.for_ranks(2, common=False).ranks[1].resume is None
    stored["passed"]["resume"] = 3
    with pytest.raises(DataError, match="here: the position within the epoch can't be read: .*resume can't be 3"):
        Progress.from_json(stored, "here")


def test_the_state_goes_on_from_where_the_pass_was() -> None:
    state = PassState(steps=4, batches=4, seqs=7, frames=10, seconds=100.0, compute_seconds=50.0, wait_seconds=20.0)
    seen = [(step.result, step.number, state.steps, state.frames) for step in a_pass().steps(batches(), state)]
    assert seen == [(0, 4, 5, 18), (2, 5, 6, 26), (4, 6, 7, 34)]
    assert (state.batches, state.seqs, state.communication_seconds) == (7, 6, 6.0)
    assert state.resume is None
    assert 100 < state.seconds < 110 and 50 < state.compute_seconds < 60 and 20 < state.wait_seconds < 30


def test_batches_without_sequences_are_steps_of_others() -> None:
    """They count as steps, but reach no sequence of this process."""
    idle = batches(1)[0]
    idle.seq_tags, idle.slices, idle.num_frames = [], {}, {}
    state = PassState()
    one_pass = a_pass(join=lambda prefetched: [*prefetched, (idle, {"data": 5})])
    assert [step.result for step in one_pass.steps(batches(2), state)] == [0, 2, 10]
    assert (state.steps, state.batches, state.seqs, state.frames) == (3, 2, 4, 16)


def test_an_error_of_an_op_names_the_sequences() -> None:
    def step(tensors: dict[str, Any], batch: Batch) -> int:
        if tensors["data"] == 1:
            raise tf.errors.OutOfRangeError(None, None, "label 7 is out of range")
        return 0

    with pytest.raises(
        DataError, match="train epoch 3: label 7 is out of range\n  sequences of the batch: seq-2, seq-3"
    ):
        list(a_pass(step).steps(batches(), PassState()))
    assert not prefetching()


def test_leaving_a_pass_stops_reading_ahead() -> None:
    def endless() -> Iterator[Batch]:
        while True:
            yield batches(1)[0]

    with pytest.raises(KeyError), contextlib.closing(a_pass().steps(endless(), PassState())) as steps:
        for _ in steps:
            assert prefetching()
            raise KeyError
    assert not prefetching()


def test_the_watchdog_sees_the_steps() -> None:
    world = World()
    notes = []
    for _ in a_pass(world=world).steps(batches(), PassState()):
        notes.append((world.heartbeat.phase, world.heartbeat.step, world.heartbeat.long))
    assert notes == [("train epoch 3", step, False) for step in range(3)]
    assert (world.heartbeat.phase, world.heartbeat.long) == ("after train epoch 3", True)


def test_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = []
    monkeypatch.setattr(log, "write", lambda level, text: lines.append((level, text)))
    monkeypatch.setattr(log, "shows", lambda level: level == 5)
    one_pass, state = a_pass(), PassState(seconds=60.0)
    for step in one_pass.steps(batches(2), state):
        one_pass.log_step(step, lambda: {"loss": 2.5})
    one_pass.log_end(state)
    assert [level for level, _ in lines] == [5, 5, 3]
    assert lines[0][1].startswith("train epoch 3, step 0, loss 2.5, ")
    assert lines[1][1].endswith("elapsed 0:01:00, exp. remaining 0:00:00, complete 100.00%")
    assert lines[2][1].startswith("train epoch 3, finished after 2 steps, 0:01:00 elapsed (")


def test_a_step_that_makes_a_graph_tells_nothing_of_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no computing time, and the time left follows from the other steps."""
    monkeypatch.setattr(log, "shows", lambda level: level == 5)
    lines = []
    monkeypatch.setattr(log, "write", lambda level, text: lines.append(text))
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(FeedFunction, "graphs_made", 7)

    def step(tensors: dict[str, Any], batch: Batch) -> int:
        first = FeedFunction.graphs_made == 7
        FeedFunction.graphs_made = 8
        clock[0] += 100.0 if first else 2.0
        return 0

    one_pass, state = a_pass(step), PassState()
    monkeypatch.setattr(one_pass, "communication_of", lambda result: 0.5)
    for each in one_pass.steps(batches(4), state):
        one_pass.log_step(each, dict)
    assert (state.compute_seconds, state.setup_seconds, state.setup_frames) == (6.0, 100.0, state.frames // 4)
    assert state.communication_seconds == 1.5  # while the others made their graphs, too, this one waited for them
    assert state.frames_per_second == state.frames * 3 / 4 / 6.0 and state.seconds_per_step == 2.0
    times = ranks_report.times_of(state)
    assert times == {"seconds_per_step": 2.0, "compute": 1.5, "communication": 0.5, "data_wait": times["data_wait"]}
    assert lines[0].endswith("elapsed 0:01:40, complete 25.00%")
    assert lines[1].endswith("elapsed 0:01:42, exp. remaining 0:00:04, complete 50.00%")
    none = PassState(steps=1, frames=9, seconds=1.0, setup_frames=9, setup_steps=1, setup_seconds=1.0)
    assert none.frames_per_second is None and none.seconds_per_step is None


def test_sizes_of_a_batch() -> None:
    assert batch_sizes(batches(1)[0]) == {"max_size:data": 5, "num_seqs": 2}
