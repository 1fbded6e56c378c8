"""Two processes train, evaluate and forward together; what they do is compared with what one process does."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any, Callable

import h5py
import numpy as np
import pytest

from tests.reliability import horovod_runs, toy
from tests.reliability.horovod_checks_run import CHECKS

pytestmark = pytest.mark.slow  # each starts processes

Results = Callable[[str], list[Any]]


#: The checks which run each time; the others only with ``-m long``, as each traces networks of its own on each rank.
FAST = ("world", "summed_loss", "join", "no_data_at_all", "param_sync", "param_join", "nan", "other_step", "diverged")
FAST += (
    "losses_on_gradients",
    "kept_states",
    "start",
    "in_order",
    "training",
    "stop_while_evaluating",
    "fewer_sequences_than_ranks",
    "stream",
)


def _run(folder: pathlib.Path, names: Sequence[str]) -> Results:
    """Do checks with two ranks.

    :return: name of a check -> what it gave on each rank
    """
    command = ["-m", "tests.reliability.horovod_checks_run", str(folder), *names]
    process = horovod_runs.start(folder, horovod_runs.launcher(), command)
    assert process.wait(horovod_runs.SECONDS) == 0, toy.text_of(folder)[-4000:]
    by_rank = [json.loads((folder / ("rank%d.json" % rank)).read_text()) for rank in range(2)]

    def of(name: str) -> list[Any]:
        for found in by_rank:
            assert "error" not in found[name], found[name]["error"]
        return [found[name]["result"] for found in by_rank]

    return of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder of the run that does the fast checks."""
    return tmp_path_factory.mktemp("horovod")


@pytest.fixture(scope="module")
def results(folder: pathlib.Path) -> Results:
    """Return the results of the fast checks."""
    return _run(folder, FAST)


@pytest.fixture(scope="module")
def long_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of the other checks."""
    return _run(tmp_path_factory.mktemp("horovod_long"), [name for name in CHECKS if name not in FAST])


def test_world(results: Results) -> None:
    """Agreeing, gathering, sending."""
    first, second = results("world")
    assert first == second
    assert first["any"] == [True, False] and first["broadcast"] == [1.0] and first["hosts"] == 2
    assert first["gather"] == [{"rank": rank, "float": 0.1 + rank, "text": "ä\n"} for rank in range(2)]
    assert first["arrays"] == [[0], [0, 1]]


def test_as_one_rank(results: Results) -> None:
    """Losses, gradient and parameters are those of one rank with the whole batches."""
    _assert_as_one_rank(results("summed_loss"))


@pytest.mark.long
@pytest.mark.parametrize("name", ["normalized_loss", "decoupled_constraints", "accumulated"])
def test_as_one_rank_with_options(long_results: Results, name: str) -> None:
    """The same with other objectives."""
    _assert_as_one_rank(long_results(name))


def _assert_as_one_rank(by_rank: list[Any]) -> None:
    for found in by_rank:
        assert found["loss"] < 1e-4 and found["norm"] < 1e-4 and found["params"] < 1e-4
        assert found["counts"]


def test_losses_on_gradients(results: Results) -> None:
    """The second updates are those of one rank with the whole batches."""
    _assert_as_one_rank(results("losses_on_gradients"))
    assert all(found["meta"] < 1e-4 for found in results("losses_on_gradients"))


def test_kept_states(results: Results) -> None:
    """States are kept on each rank for its sequences."""
    _assert_as_one_rank(results("kept_states"))


@pytest.mark.long
def test_compression(long_results: Results) -> None:
    """Half precision: nearly the same."""
    for found in long_results("fp16"):
        assert 0.0 < found["params"] < 1e-2


@pytest.mark.long
def test_options_of_gradient_and_rate(long_results: Results) -> None:
    """The mean instead of the sum, and the rate times the number of ranks."""
    assert max(long_results("average_grad")) < 1e-6
    assert long_results("scaled_rate") == [pytest.approx(0.2)] * 2


@pytest.mark.long
def test_running_means(long_results: Results) -> None:
    """Batch normalisation has the same statistics everywhere."""
    assert long_results("statistics") == [True, True]


@pytest.mark.long
def test_random_numbers(long_results: Results) -> None:
    """Each rank drops other units; the initial values have the same seed."""
    (first, same), (second, also_same) = long_results("dropout_differs")
    assert first != second and same == also_same == first


def test_join(results: Results) -> None:
    """A rank without data takes part with weight zero until the other one is done."""
    first, second = results("join")
    assert first["params"] < 1e-5 and second["params"] < 1e-5
    assert first["steps"] == [[True, True, 2]] * 2 + [[True, True, 1]] * 3
    assert second["steps"] == [[True, True, 2]] * 2 + [[False, False, 1]] * 3
    assert results("no_data_at_all") == [[[True], 0], [[False], 0]]


def test_averaged_parameters(results: Results) -> None:
    """Own steps up to the mean; the state of the optimizer is put together at the end of an epoch."""
    for found in results("param_sync"):
        assert found["apart"] == [0.0, 0.0] and found["mean"] < 1e-6 and found["slots_before"] == 2
    assert results("param_join") == [[5, True, 5, True], [2, True, 2, True]]


@pytest.mark.long
def test_pause(long_results: Results) -> None:
    """Both hear with the same step that one of them wants to stop or save."""
    assert long_results("pause") == [[False, False, True, False]] * 2


def test_nan(results: Results) -> None:
    """The rank, host, sequence and data that are bad, on both; no update was done. The bad batch is kept, no other."""
    by_rank = results("nan")
    for text, same, folders, bad, _ in by_rank:
        assert same
        assert "on rank 1/2 on " in text and "Sequences: seq-1" in text and "Inf, in the key 'data'" in text
        assert folders == ["m.failure-000000-rank1"] and bad
    kept, own = by_rank[1][-1]
    assert kept == own != by_rank[0][-1][1]  # the random numbers of its dropout


def test_not_the_same(results: Results) -> None:
    """Ranks at other steps, with other parameters, or about to do something else."""
    for text in results("other_step"):
        assert "do not do the same step" in text and "rank 0/2" in text and "rank 1/2" in text
    for text in results("diverged"):
        assert "train epoch 1: the parameters of rank 1/2" in text
    for found in results("start"):
        assert "differ in their settings" in found["settings"] and "batch_size: 5 on rank 0" in found["settings"]
        assert "6 on rank 1" in found["settings"] and "same" not in found["settings"].split("batch_size")[1]
        assert "hidden/W: float32 [5, 7] on rank 0" in found["network"]
        assert "data of 'train'" in found["data"] and "sequences: absent on rank 0" in found["data"]
        assert found["same"] == ""


def test_order_of_results(results: Results) -> None:
    """All of them, on the first rank."""
    assert results("in_order") == [list(range(11)), []]


def test_training(folder: pathlib.Path, results: Results) -> None:
    """Two epochs with checkpoints, by one rank only."""
    for code, files in results("training"):
        assert code == 0
        assert "toy.001.index" in files and "toy.002.index" in files
        assert not [name for name in files if "tmp" in name or "rank" in name]
    scores = toy.scores(folder / "training")
    assert sorted(scores) == [1, 2] and "dev_score" in scores[2][1]


def test_a_signal_while_evaluating(results: Results) -> None:
    """The evaluation ends at once on both ranks, though not with the same batch, and none of its scores are kept."""
    for rank, (text, batches, files, scores) in enumerate(results("stop_while_evaluating")):
        assert "Stopped by SIGTERM while evaluating" in text
        assert 2 + rank <= batches < 12  # of 40; some were loaded in advance
        assert "toy.001.step2.index" in files
        assert "train_score" in scores and "dev_score" not in scores


def test_fewer_sequences_than_ranks(results: Results) -> None:
    """One to train on and one to evaluate: both epochs have scores."""
    for grad, param in results("fewer_sequences_than_ranks"):
        assert "train_score" in grad and "dev_score" in grad and param == grad


def test_stream(results: Results) -> None:
    """Each sequence of a stream is read by one rank only, though none knows how many there are."""
    (first, scores), (second, other) = results("stream")
    tags = ["seq-%d" % i for i in range(11)]
    assert (first, second) == (tags[0::2], tags[1::2])
    assert "train_score" in scores and "dev_score" in scores and scores == other


def test_tasks_together(folder: pathlib.Path, results: Results) -> None:
    """Evaluating and forwarding on two ranks gives the files of one rank."""
    results("training")
    base = folder / "training"
    assert (base / "together.seqs").read_text() == (base / "alone.seqs").read_text()
    ours, theirs = ((base / (name + ".scores")).read_text() for name in ("together", "alone"))
    ours, theirs = eval(ours, {}), eval(theirs, {})
    for dataset, found in theirs.items():
        assert ours[dataset]["score"]["cost:output"] == pytest.approx(found["score"]["cost:output"], rel=1e-6)
    with h5py.File(base / "together.hdf") as ours, h5py.File(base / "alone.hdf") as theirs:
        assert list(ours["seqTags"]) == list(theirs["seqTags"])
        np.testing.assert_array_equal(ours["seqLengths"], theirs["seqLengths"])
        np.testing.assert_allclose(ours["inputs"], theirs["inputs"], rtol=1e-5)
