"""One global step: what the trainer counts is what evaluation, search, forwarding and `Network.run` read."""

from __future__ import annotations

import ast
import pathlib
from typing import Any, Callable

import h5py
import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.learning_rate.file import read_file
from returnn_tf.engine.passes.evaluator import Evaluator
from returnn_tf.engine.passes.forwarder import Forwarder
from returnn_tf.engine.passes.step_trainer import StepTrainer
from returnn_tf.engine.search.searcher import Searcher
from returnn_tf.engine.training.load_model import load_network
from tests.run_tasks import run_task

STEPS = 10
FEED = {
    "data": np.ones((2, 3, 2), "float32"),
    "data/size0": np.array([3, 2], "int32"),
    "classes": np.zeros((2, 3), "int32"),
    "classes/size0": np.array([3, 2], "int32"),
}
NETWORK: dict[str, Any] = {
    "output": {"class": "softmax", "loss": "ce", "from": "data"},
    "step": {"class": "global_train_step", "is_output_layer": True},
    # the step in every frame: as features with a loss, and as labels
    "frames": {
        "class": "eval",
        "eval": "0 * source(0) + tf.cast(self.network.global_train_step, 'float32')",
        "from": "output",
        "loss": "as_is",
        "loss_scale": 0.0,
    },
    "labels": {
        "class": "eval",
        "eval": "0 * source(0) + tf.cast(self.network.global_train_step, 'int32')",
        "from": "data:classes",
        "is_output_layer": True,
    },
}


def config_of(**changes: Any) -> Config:
    dataset = {"class": "DummyDataset", "input_dim": 2, "output_dim": 3, "num_seqs": STEPS, "seq_len": 3}
    return Config(
        {
            "extern_data": {"data": {"dim": 2}, "classes": {"dim": 3, "sparse": True}},
            "network": NETWORK,
            "train": dataset,
            "dev": {**dataset, "num_seqs": 1},
            "max_seqs": 1,
            "batch_size": 10,
            "num_epochs": 1,
            "learning_rate": 0.01,
            **changes,
        }
    )


def by_run(net: Network) -> float:
    return float(net.run(FEED).layers["step"].value)


def by_evaluator(net: Network) -> float:
    result = Evaluator(net, Config()).step(FEED)
    return result.losses["frames"] / result.counts["frames"] / 3  # the sum over the features


def by_searcher(net: Network) -> float:
    searching = Network.from_config(config_of(), search=True)
    searching.global_step.assign(net.global_step)
    return float(Searcher(searching, ["labels"]).run(FEED).hypotheses["labels"][0][0].labels[0])


def by_forwarder(net: Network) -> float:
    return float(Forwarder(net, "frames").run(FEED).value[0, 0, 0])


READERS = pytest.mark.parametrize("read", [by_run, by_evaluator, by_searcher, by_forwarder])


@READERS
def test_whoever_runs_the_network_reads_the_step_of_the_training(read: Callable[[Network], float]) -> None:
    net = Network.from_config(config_of(), train=True)
    trainer = StepTrainer(net, config_of())
    for _ in range(STEPS):
        trainer.step(FEED)
    assert trainer.step_count == STEPS and read(net) == STEPS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Train one epoch of `STEPS` steps."""
    folder = tmp_path_factory.mktemp("trained")
    assert run_task(config_of(model=str(folder / "net"), learning_rate_file=str(folder / "rates"))) == 0
    return str(folder / "net")


@pytest.mark.slow
def test_dev_scores_see_the_step(trained: str) -> None:
    assert read_file(str(pathlib.Path(trained).parent / "rates"))[1].error["dev_score_frames"] == 3 * STEPS


@pytest.mark.slow
@READERS
def test_a_loaded_model_has_its_step(trained: str, read: Callable[[Network], float]) -> None:
    net, _ = load_network(config_of(model=trained))
    assert read(net) == STEPS


def test_a_model_which_is_preloaded_has_its_step(trained: str) -> None:
    options = {"whole": {"filename": trained + ".001"}}
    net, choice = load_network(config_of(preload_from_files=options))
    assert choice.path is None and by_run(net) == STEPS


@pytest.mark.slow
def test_initial_values_leave_the_step_at_zero(trained: str, tmp_path: Any) -> None:
    config = config_of(init_params=trained + ".001", model=str(tmp_path / "net"))
    assert run_task(config) == 0
    assert checkpoint.read(str(tmp_path / "net.001"))["global_step"] == STEPS


@pytest.mark.slow
def test_tasks_read_the_step_of_the_checkpoint(
    trained: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of(load=trained + ".001", eval_output_file="scores.txt", output_file="forward.hdf")
    config.update({"forward_data": "dev", "forward_output_layer": "frames"})
    config.update({"search_data": "dev", "search_output_layer": "labels", "search_output_file": "found.txt"})
    for task in ("eval", "search", "forward"):
        config.set("task", task)
        assert run_task(config) == 0
    scores = ast.literal_eval(pathlib.Path("scores.txt").read_text())
    assert scores["dev"]["score"]["cost:frames"] == 3 * STEPS
    assert pathlib.Path("found.txt").read_text().count("%d " % STEPS) == 2
    with h5py.File("forward.hdf", "r") as file:
        assert (file["inputs"][...] == STEPS).all()
