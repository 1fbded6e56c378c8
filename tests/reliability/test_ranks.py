"""Two processes train, evaluate and forward together; what they do is compared with what one process does."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import pytest

from tests.reliability import ranks_runs, toy
from tests.reliability.ranks_checks_run import CHECKS
from tests.tiers import usual

pytestmark = pytest.mark.slow  # each starts processes

#: The checks which run each time, by engine; the others only with ``-m long``, as each traces networks of its own on
#: each rank. Both engines are used by the same code.
FAST = {
    "tensorflow": (
        *(
            "world",
            "summed_loss",
            "early_messages",
            "out_of_memory",
            "join",
            "no_data_at_all",
            "param_sync",
            "param_join",
            "nan",
            "other_step",
        ),
        *("averages", "diverged", "losses_on_gradients", "kept_states", "batch_norm", "start", "in_order", "training"),
        *("stop_while_evaluating", "fewer_sequences_than_ranks", "stream"),
    ),
    "horovod": (
        *("world", "summed_loss", "out_of_memory", "join", "no_data_at_all", "param_sync", "param_join", "nan"),
        "training",
    ),
}
#: For tests whose checks are fast with both engines, and with one of them.
BOTH = pytest.mark.parametrize("engine", FAST, scope="module")
ONE = pytest.mark.parametrize("engine", usual(FAST, ["tensorflow"]), scope="module")

#: What several ranks do as one that trains alone: Adam, gradients clipped by their norm, and what each name says.
AS_ONE = (
    *("summed_loss", "normalized_loss", "accumulated", "losses_on_gradients", "kept_states", "batch_norm"),
    *("adapters", "decoupled_constraints", "output_constraints", "loss_on_a_parameter"),
)


class Results:
    """What the checks gave, by name, for each rank. Two ranks do those that are needed when the first is asked for.

    :param engine: connects the ranks
    :param folders: makes the folders of the runs
    """

    def __init__(self, engine: str, folders: pytest.TempPathFactory) -> None:
        self.of_long_test = False  # which alone may have the checks done that are not fast
        self._engine = engine
        self._folders = folders
        self._runs: dict[bool, tuple[pathlib.Path, list[Any]]] = {}  # by whether the checks are fast

    def __call__(self, name: str) -> list[Any]:
        _, by_rank = self._run(name)
        for found in by_rank:
            assert "error" not in found[name], found[name]["error"]
        return [found[name]["result"] for found in by_rank]

    def folder(self, name: str) -> pathlib.Path:
        """Return the folder in which a check was done."""
        return self._run(name)[0]

    def _run(self, name: str) -> tuple[pathlib.Path, list[Any]]:
        fast = name in FAST[self._engine]
        assert fast or self.of_long_test, "%s is no fast check of %s: it is for long tests" % (name, self._engine)
        if fast not in self._runs:
            folder = self._folders.mktemp("ranks")
            names = [each for each in CHECKS if (each in FAST[self._engine]) == fast]
            self._runs[fast] = folder, run_checks(folder, self._engine, 2, names)
        return self._runs[fast]


def run_checks(folder: pathlib.Path, engine: str, number: int, names: Sequence[str]) -> list[Any]:
    """Do checks with some ranks; return what each rank found, by name."""
    command = ["-m", "tests.reliability.ranks_checks_run", str(folder), *names]
    process = ranks_runs.start(folder, ranks_runs.launcher(engine=engine, number=number), command)
    assert process.wait(ranks_runs.SECONDS) == 0, toy.text_of(folder)[-4000:]
    return [json.loads((folder / ("rank%d.json" % rank)).read_text()) for rank in range(number)]


@pytest.fixture(scope="module")
def results_of_engine(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of the checks with an engine, for all tests."""
    return Results(engine, tmp_path_factory)


@pytest.fixture
def results(results_of_engine: Results, request: pytest.FixtureRequest) -> Results:
    """Return the results of the checks with an engine."""
    results_of_engine.of_long_test = request.node.get_closest_marker("long") is not None
    return results_of_engine


@BOTH
def test_world(results: Results) -> None:
    """Agreeing, gathering, sending."""
    first, second = results("world")
    assert first == second
    assert first["any"] == [True, False] and first["broadcast"] == [1.0] and first["hosts"] == 2
    assert first["gather"] == [{"rank": rank, "float": 0.1 + rank, "text": "ä\n"} for rank in range(2)]
    assert first["arrays"] == [[0], [0, 1]]


@BOTH
def test_as_one_rank(results: Results) -> None:
    """Losses, gradient and parameters are those of one rank with the whole batches."""
    _assert_as_one_rank(results("summed_loss"))


@pytest.mark.parametrize("engine", ["tensorflow"], scope="module")  # how Horovod was built decides for it, too
def test_messages_are_sent_while_gradients_are_computed(results: Results) -> None:
    """That of the last layer has arrived before the gradient of the first one is there."""
    assert results("early_messages") == [[True], [True]]


@BOTH
@pytest.mark.long
@pytest.mark.parametrize("name", ["normalized_loss", "accumulated", *AS_ONE[-4:]])
def test_as_one_rank_with_options(results: Results, name: str) -> None:
    """The same with other objectives."""
    _assert_as_one_rank(results(name))


@pytest.mark.long
@pytest.mark.parametrize("number", [3, 4])
@pytest.mark.parametrize("engine", FAST)
def test_more_ranks_as_one(engine: str, number: int, tmp_path: pathlib.Path) -> None:
    """With more than two, the order of a sum matters, and a ring has ranks that are not neighbours."""
    for found in run_checks(tmp_path, engine, number, [*AS_ONE, "param_sync", "world"]):
        assert not [result["error"] for result in found.values() if "error" in result]
        results = {name: result["result"] for name, result in found.items()}
        _assert_as_one_rank([results[name] for name in AS_ONE])
        assert results["losses_on_gradients"]["meta"] < 1e-6
        assert results["param_sync"]["apart"] == [0.0, 0.0] and results["param_sync"]["mean"] < 1e-6
        assert [part["rank"] for part in results["world"]["gather"]] == list(range(number))


@BOTH
def test_out_of_memory_on_one_rank(results: Results) -> None:
    """The update is that of one rank with the whole batches; counts of means are with the other ranks already."""
    by_rank = results("out_of_memory")
    _assert_as_one_rank(by_rank)
    assert all("use_normalized_loss" in found["means"] for found in by_rank)


def _assert_as_one_rank(by_rank: list[Any]) -> None:
    for found in by_rank:
        assert found["loss"] < 1e-6 and found["norm"] < 1e-4 and found["params"] < 1e-6
        assert found["counts"] and found["clipped"]


@ONE
def test_losses_on_gradients(results: Results) -> None:
    """The second updates are those of one rank with the whole batches."""
    _assert_as_one_rank(results("losses_on_gradients"))
    assert all(found["meta"] < 1e-4 for found in results("losses_on_gradients"))


@ONE
def test_batch_norm(results: Results) -> None:
    """Two ranks with the same batch, and one that has it twice: batches are normalised on each rank for itself."""
    _assert_as_one_rank(results("batch_norm"))


@ONE
def test_kept_states(results: Results) -> None:
    """States are kept on each rank for its sequences."""
    _assert_as_one_rank(results("kept_states"))


@BOTH
@pytest.mark.long
def test_compression(results: Results) -> None:
    """Half precision: nearly the same."""
    for found in results("fp16"):
        assert 0.0 < found["params"] < 1e-2


@BOTH
@pytest.mark.long
def test_options_of_gradient_and_rate(results: Results) -> None:
    """The mean instead of the sum, and the rate times the number of ranks."""
    assert max(results("average_grad")) < 1e-6
    assert results("scaled_rate") == [pytest.approx(0.2)] * 2


@BOTH
@pytest.mark.long
def test_running_means(results: Results) -> None:
    """Batch normalisation has the same statistics everywhere."""
    assert results("statistics") == [True, True]


@BOTH
@pytest.mark.long
def test_random_numbers(results: Results) -> None:
    """Each rank drops other units; the initial values have the same seed."""
    (first, same), (second, also_same) = results("dropout_differs")
    assert first != second and same == also_same == first


@BOTH
def test_join(results: Results) -> None:
    """A rank without data takes part with weight zero until the other one is done."""
    first, second = results("join")
    assert first["params"] < 1e-6 and second["params"] < 1e-6
    assert first["steps"] == [[True, True, 2]] * 2 + [[True, True, 1]] * 3
    assert second["steps"] == [[True, True, 2]] * 2 + [[False, False, 1]] * 3
    assert results("no_data_at_all") == [[[True], 0], [[False], 0]]


@BOTH
def test_averaged_parameters(results: Results) -> None:
    """Own steps up to the mean; the state of the optimizer is put together at the end of an epoch."""
    for found in results("param_sync"):
        assert found["apart"] == [0.0, 0.0] and found["mean"] < 1e-6 and found["slots_before"] == 2
    assert results("param_join") == [[5, True, 5, True], [2, True, 2, True]]


@ONE
def test_averages(results: Results) -> None:
    for found in results("averages"):
        assert max(found.values()) < 2e-6, found


@BOTH
@pytest.mark.long
def test_pause(results: Results) -> None:
    """Both hear with the same step that one of them wants to stop or save."""
    assert results("pause") == [[False, False, True, False]] * 2


@BOTH
def test_nan(results: Results) -> None:
    """The rank, host, sequence and data that are bad, on both; no update was done. The bad batch is kept, no other."""
    by_rank = results("nan")
    for text, same, folders, bad, _ in by_rank:
        assert same
        assert "on rank 1/2 on " in text and "Sequences: seq-1" in text and "Inf, in the key 'data'" in text
        assert folders == ["m.failure-000000-rank1"] and bad
    kept, own = by_rank[1][-1]
    assert kept == own != by_rank[0][-1][1]  # the random numbers of its dropout


@ONE
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


@ONE
def test_order_of_results(results: Results) -> None:
    """All of them, on the first rank."""
    assert results("in_order") == [list(range(11)), []]


@BOTH
def test_training(results: Results) -> None:
    """Two epochs with checkpoints, by one rank only."""
    for code, files in results("training"):
        assert code == 0
        assert "toy.001.index" in files and "toy.002.index" in files
        assert not [name for name in files if "tmp" in name or "rank" in name]
    scores = toy.scores(results.folder("training") / "training")
    assert sorted(scores) == [1, 2] and "dev_score" in scores[2][1]


@ONE
def test_a_signal_while_evaluating(results: Results) -> None:
    """The evaluation ends at once on both ranks, though not with the same batch, and none of its scores are kept."""
    for rank, (text, batches, files, scores) in enumerate(results("stop_while_evaluating")):
        assert "Stopped by SIGTERM while evaluating" in text
        assert 2 + rank <= batches < 12  # of 40; some were loaded in advance
        assert "toy.001.step2.index" in files
        assert "train_score" in scores and "dev_score" not in scores


@ONE
def test_fewer_sequences_than_ranks(results: Results) -> None:
    """One to train on and one to evaluate: both epochs have scores."""
    for grad, param in results("fewer_sequences_than_ranks"):
        assert "train_score" in grad and "dev_score" in grad and param == grad


@ONE
def test_stream(results: Results) -> None:
    """Each sequence of a stream is read by one rank only, though none knows how many there are."""
    (first, scores), (second, other) = results("stream")
    tags = ["seq-%d" % i for i in range(11)]
    assert (first, second) == (tags[0::2], tags[1::2])
    assert "train_score" in scores and "dev_score" in scores and scores == other


@BOTH
def test_tasks_together(results: Results) -> None:
    """Evaluating and forwarding on two ranks gives the files of one rank."""
    results("training")
    base = results.folder("training") / "training"
    assert (base / "together.seqs").read_text() == (base / "alone.seqs").read_text()
    ours, theirs = ((base / (name + ".scores")).read_text() for name in ("together", "alone"))
    ours, theirs = eval(ours, {}), eval(theirs, {})
    for dataset, found in theirs.items():
        assert ours[dataset]["score"]["cost:output"] == pytest.approx(found["score"]["cost:output"], rel=1e-6)
    with h5py.File(base / "together.hdf") as ours, h5py.File(base / "alone.hdf") as theirs:
        assert list(ours["seqTags"]) == list(theirs["seqTags"])
        np.testing.assert_array_equal(ours["seqLengths"], theirs["seqLengths"])
        np.testing.assert_allclose(ours["inputs"], theirs["inputs"], rtol=1e-5)
