"""What several processes need, as far as it can be tested in one."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from returnn_tf.compat.modules.horovod import get_ctx
from returnn_tf.config import Config, ConfigError, DataError
from returnn_tf.config.settings import check_settings
from returnn_tf.datasets.core.share import Share
from returnn_tf.engine.distributed import membership, world
from returnn_tf.engine.distributed.control import Control
from returnn_tf.engine.distributed.cores import share_of_cores
from returnn_tf.engine.distributed.heartbeat import Heartbeat
from returnn_tf.engine.distributed.ranks import joined_batches
from returnn_tf.engine.distributed.watchdog import StallDetector
from returnn_tf.engine.distributed.world import check_world_size
from returnn_tf.engine.passes import ranks_report
from returnn_tf.engine.passes.forward_pass import in_order
from returnn_tf.engine.passes.progress import PassState, Progress
from returnn_tf.engine.support.scores import added_sums
from tests.waiting import LONG

FITTING = [
    (2, {}),
    (2, {"SLURM_NTASKS": "2"}),
    (4, {"SLURM_NTASKS": "1"}),  # one task which starts four processes
    (1, {"NSLOTS": "8"}),  # slots for threads
    (1, {"NSLOTS": "8", "PE": "smp"}),
    (2, {"OMPI_COMM_WORLD_SIZE": "2", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "2"}),  # mpirun within Slurm
    (2, {"RETURNN_TF_ADDRESSES": "a:1,a:2", "SLURM_STEP_NUM_TASKS": "1"}),  # launch in an interactive step
]
WRONG = [
    (1, {"SLURM_NTASKS": "2"}, "SLURM_NTASKS = 2"),
    (4, {"SLURM_NTASKS": "2"}, "Horovod sees 4 processes"),
    (1, {"OMPI_COMM_WORLD_SIZE": "2"}, "built without that MPI"),
    (1, {"PMI_SIZE": "3"}, "PMI_SIZE = 3"),
    (1, {"SLURM_STEP_NUM_TASKS": "2"}, "mpirun -np 2"),
    (1, {"RETURNN_TF_ADDRESSES": "a:1,a:2"}, "RETURNN_TF_ADDRESSES = 2"),
    (1, {"NSLOTS": "2", "PE": "mpi_rr"}, "NSLOTS = 2"),
    (1, {"NSLOTS": "2", "NHOSTS": "2"}, "check_size"),
]


@pytest.mark.parametrize("size,environ", FITTING)
def test_world_size_fits(size: int, environ: dict[str, str]) -> None:
    """As many as were asked for, or nothing was said."""
    check_world_size(size, environ)


@pytest.mark.parametrize("size,environ,words", WRONG)
def test_world_size_differs(size: int, environ: dict[str, str], words: str) -> None:
    """Refused, with the variable and what to do."""
    with pytest.raises(ConfigError) as error:
        check_world_size(size, environ)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"horovod_reduce_type": "gard"}, "Did you mean 'grad'"),
        ({"horovod_dataset_distribution": "shards"}, "Did you mean 'shard'"),
        ({"horovod_compression": "fp8"}, "horovod_compression"),
        ({"horovod_param_sync_step": 0}, "must be at least 1"),
        ({"horovod_param_sync_time_diff": -1}, "must be at least 0"),
        ({"horovod_timeout": 0}, "above 0"),
    ],
)
def test_wrong_options(settings: dict[str, Any], words: str) -> None:
    """Each names its key."""
    with pytest.raises(ConfigError) as error:
        check_settings(Config(settings))
    assert words in str(error.value) and next(iter(settings)) in str(error.value)


def test_alone() -> None:
    """A world of one process asks nobody and imports no Horovod."""
    alone = world.start(Config({}))
    assert (alone.rank, alone.size, alone.is_chief) == (0, 1, True)
    assert alone.any(True) and not alone.any(False)
    assert alone.gather([1]) == [[1]] and alone.hosts() == [alone.host]
    assert list(in_order(alone, [[1, 2], [3]])) == [1, 2, 3]
    assert get_ctx(Config({})) is None


def _steps(own: int, others_more: list[bool]) -> list[bool]:
    """Whether each step of a rank with so many batches is its own; the others have more as the list says."""
    control, taken = Control(), []

    class Batch:
        number = 0

    answers = iter(others_more)
    for batch, _ in joined_batches([(Batch(), None)] * own, control, lambda flag: flag or bool(others_more)):
        taken.append(isinstance(batch, Batch))
        assert control.own == taken[-1]
        others = next(answers, False)
        control.any_more = control.more or others
    return taken


@pytest.mark.parametrize(
    "own,others,expected",
    [
        (2, [], [True, True]),
        (2, [True, True, True, False], [True, True, False, False]),
        (0, [True, False], [False, False]),
        (0, [], []),
    ],
)
def test_turns(own: int, others: list[bool], expected: list[bool]) -> None:
    """Own batches first, then idle ones as long as another rank has more."""
    assert _steps(own, others) == expected


def test_control() -> None:
    """What is said adds up, and other positions are noticed."""
    both = [Control(own=True, more=True), Control(own=False, wants_pause=lambda: True)]
    total = [sum(values) for values in zip(*[control.pack(7, 0.1) for control in both])]
    assert all(control.unpack(total, 2) for control in both)
    assert [(control.active, control.any_more, control.any_pause) for control in both] == [(1, True, True)] * 2
    apart = [sum(values) for values in zip(both[0].pack(7, 0.1), both[1].pack(8, 0.1))]
    assert not both[0].unpack(apart, 2)


def _state(**more: Any) -> dict[str, Any]:
    return {"phase": "train", "step": 3, "age": 0.0, "waiting": False, "long": False, "patience": 0.0, **more}


@pytest.mark.parametrize(
    "states,words",
    [
        ({}, ""),
        ({1: _state(age=9.0, waiting=True)}, ""),
        ({1: _state(age=9.0)}, "rank 1 on b (last: train, 4 steps done) has made no progress for 9 s"),
        ({1: _state(age=9.0, patience=20.0)}, ""),  # its steps take long
        ({1: _state(age=9.0, long=True)}, ""),
        ({1: _state(age=200.0, long=True)}, "it hangs"),
        ({0: _state(age=16.0, waiting=True), 1: _state(age=17.0, waiting=True)}, "All ranks have waited"),
    ],
)
def test_judge(states: dict[int, dict[str, Any]], words: str) -> None:
    """Who is to blame after five seconds."""
    detector = StallDetector(5.0)
    detector.expect(["a", "b"])
    for rank in range(2):
        detector.update(rank, states.get(rank, _state()))
    verdict = detector.verdict([1])
    assert words in verdict and bool(words) == bool(verdict)


def test_judge_of_the_dead() -> None:
    """Silence, a broken connection, and an error that was told; not a goodbye."""
    detector = StallDetector(0.01)
    detector.expect(["a", "b", "c"])
    detector.update(1, _state())
    time.sleep(0.05)
    assert "rank 1 on b" in detector.verdict([1]) and "silent for" in detector.verdict([1])
    detector.left(1)
    detector.ended(1)
    assert detector.verdict([1]) == ""
    detector.ended(2)
    assert detector.verdict([1, 2]) == "rank 2 on c has ended or was killed."
    detector.failed(2, "the file is missing")
    assert detector.verdict([1, 2]) == "rank 2 on c failed: the file is missing."


def test_board() -> None:
    """What the main thread notes."""
    heartbeat = Heartbeat()
    assert heartbeat.state()["long"]
    heartbeat.step_done("train")
    assert not heartbeat.state()["long"] and heartbeat.state()["step"] == 0 and heartbeat.state()["age"] < LONG
    with heartbeat.collective("gathering"):
        assert heartbeat.state()["waiting"] and heartbeat.state()["phase"] == "gathering"
    assert not heartbeat.state()["waiting"]
    heartbeat.arrived = lambda: True
    assert heartbeat.state()["waiting"]


def test_straggler() -> None:
    """A fifth more work for a step than the quickest; waiting for others is no work."""
    quick = PassState(steps=10, seconds=10.0, compute_seconds=9.0, communication_seconds=4.0, wait_seconds=1.0)
    slow = PassState(steps=10, seconds=10.0, compute_seconds=9.0, communication_seconds=1.0, wait_seconds=1.0)
    line = ranks_report.straggler([quick, slow], ["a", "b"])
    assert "rank 1 on b works 0.9000 sec/step, rank 0 on a 0.6000" in line
    assert ranks_report.straggler([quick, quick], ["a", "b"]) == ""
    values = ranks_report.values([quick, slow])
    assert values["time/rank1/compute"] == pytest.approx(0.8) and len(values) == 8
    assert ranks_report.values([quick]) == {}


def test_sums() -> None:
    """Sums of several ranks."""
    parts = [{"losses": {"a": 1.0}, "counts": {"a": 2.0}}, {"losses": {"a": 3.0, "b": 1.0}}]
    assert added_sums(parts) == {"losses": {"a": 4.0, "b": 1.0}, "counts": {"a": 2.0}}


def test_other_number_of_ranks() -> None:
    """Within an epoch others go on with the sequences that nobody had done, each time anew."""
    order = np.arange(100, 111)
    assert Share(done=()).of_order(order).tolist() == order.tolist()
    assert Share(done=((2, 3),)).of_order(order).tolist() == [104, 106, 107, 108, 109, 110]
    assert Share(done=((2, 3), (1,))).of_order(order).tolist() == [106, 107, 108, 109, 110]
    states = [PassState(steps=3, batches=3, seqs=seqs, sums={"losses": {"a": 1.0}}) for seqs in (2, 3)]
    progress = Progress(1, 0, passed=states[0], ranks=states)
    assert progress.for_ranks(2, common=True) is progress
    one = progress.for_ranks(1, common=True)
    assert one.shared == [[2, 3]] and one.of_rank(0, 1).sums == {"losses": {"a": 1.0}}
    assert (one.of_rank(0, 1).steps, one.of_rank(0, 1).batches) == (3, 0)
    three = progress.for_ranks(3, common=False)
    assert [state.sums for state in three.ranks] == [{"losses": {"a": 2.0}}, {}, {}]
    progress.data["shuffle_batches"] = "True"
    with pytest.raises(DataError, match="by 2 processes, and this run has 3"):
        progress.for_ranks(3, common=True)


def test_share_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scheduler says, of all its tasks here for ranks of `launch`; what mpirun bound; else a part of all."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert share_of_cores(2, {"SLURM_CPUS_PER_TASK": "3"}) == 3
    tasks = {"SLURM_CPUS_PER_TASK": "3", "SLURM_NTASKS": "8", "SLURM_NNODES": "2"}
    assert share_of_cores(2, tasks) == 3 and share_of_cores(2, {**tasks, membership.RANK: "0"}) == 6
    assert share_of_cores(2, {"OMPI_COMM_WORLD_SIZE": "2"}) == 8
    assert share_of_cores(4, {}) == 2
    assert share_of_cores(32, {}) == 1
