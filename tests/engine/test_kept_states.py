"""Training on pieces of sequences in order, with a state that is kept from batch to batch: resume within an epoch."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from returnn_tf.compiler.network import Network
from returnn_tf.config import Config, DataError
from returnn_tf.engine.checkpoints import checkpoint
from returnn_tf.engine.checkpoints.selection import find_checkpoints, find_step_checkpoints
from returnn_tf.engine.search.search_pass import searched
from returnn_tf.engine.training.engine import Engine
from returnn_tf.engine.training.load_model import load_network
from tests.tiers import usual

ATTENTION = {
    "class": "self_attention", "num_heads": 1, "total_key_dim": 2, "n_out": 4, "attention_left_only": True,
    "from": "lstm",
}  # fmt: skip


def options(model: pathlib.Path, state: str, **more: Any) -> dict[str, Any]:
    """Return a config: one piece of one sequence in each batch."""
    data = {"class": "Task12AXDataset", "num_seqs": 3}
    network = {
        "lstm": {"class": "rec", "unit": "lstm", "n_out": 4, "from": "data", "initial_state": state},
        "attention": {**ATTENTION, "initial_state": state},
        "loop": {"class": "rec", "from": "attention", "unit": {
            "output": {"class": "rnn_cell", "unit": "gru", "n_out": 4, "from": ["data:source", "prev:output"],
                       "initial_state": state}}},
        "output": {"class": "softmax", "loss": "ce", "target": "classes", "from": "loop"},
    }  # fmt: skip
    return {
        "model": str(model), "train": data, "dev": {**data, "fixed_random_seed": 1}, "num_epochs": 1,
        "extern_data": {"data": {"dim": 9}, "classes": {"dim": 2, "sparse": True}}, "network": network,
        "chunking": "20:20", "batch_size": 20, "max_seqs": 1, "learning_rate": 0.1, "save_every_steps": 3,
        "optimizer": {"class": "adam"}, "behavior_version": 21, **more,
    }  # fmt: skip


def train(config: dict[str, Any]) -> dict[str, Any]:
    """Train all epochs; the parameters of the last one."""
    with Engine(Config(config)) as engine:
        engine.train()
    return checkpoint.read(find_checkpoints(config["model"])[config["num_epochs"]])


@pytest.fixture(scope="module", params=usual(["keep_over_epoch", "keep_over_epoch_no_init"], ["keep_over_epoch"]))
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a config, after its training, and the parameters."""
    config = options(tmp_path_factory.mktemp("trained") / "net", request.param)
    return config, train(config)


@pytest.fixture(scope="module")
def zeros(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the parameters after a training that keeps no state."""
    return train(options(tmp_path_factory.mktemp("zeros") / "net", "zeros"))


@pytest.mark.slow
def test_the_state_matters(trained: tuple[dict[str, Any], dict[str, Any]], zeros: dict[str, Any]) -> None:
    """Otherwise the test below would show nothing."""
    assert np.abs(trained[1]["output/W"] - zeros["output/W"]).max() > 1e-4


@pytest.mark.slow
def test_resume_within_an_epoch(trained: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """The states are in the checkpoint, among the parameters for RETURNN and beside them: the weights are the same."""
    config, undisturbed = trained
    assert {"lstm/rec/keep_state_c", "lstm/rec/keep_state_h", "loop/rec/output/keep_state_var"} <= set(undisturbed)
    steps = find_step_checkpoints(config["model"])
    assert steps
    stored = checkpoint.read_state(list(steps.values())[-1])
    names = sorted(name for name in stored if name.startswith("kept/"))
    assert "kept/lstm/rec/keep_state_h/0" in names and "kept/loop/rec/output/keep_state_var/0" in names
    assert np.abs(stored["kept/lstm/rec/keep_state_h/0"]).max() > 0
    checkpoint.delete(find_checkpoints(config["model"])[1])
    resumed = train(config)
    assert set(resumed) == set(undisturbed)
    for name, value in undisturbed.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.parametrize("state", ["zeros", "keep_over_epoch", "keep_over_epoch_no_init"])
@pytest.mark.parametrize("search", [False, True])
def test_other_tasks_begin_with_the_states_of_the_checkpoint(tmp_path: pathlib.Path, state: str, search: bool) -> None:
    """Unless a pass resets them; a checkpoint of RETURNN has them among the parameters, too."""
    lstm = {"class": "rec", "unit": "lstm", "n_out": 3, "from": "data", "initial_state": state}
    model = str(tmp_path / "net")
    settings = {
        "extern_data": {"data": {"dim": 2}},
        "network": {"output": lstm},
        "model": model,
        "behavior_version": 21,
    }
    trained = Network.from_config(Config(settings))
    x = np.random.default_rng(0).normal(size=(2, 4, 2)).astype("float32")
    feed = {"data": x, "data/size0": np.array([4, 3])}
    first = trained.run(feed).layers["output"].value
    params = {**trained.stored_params, **trained.kept.params}
    checkpoint.save(model + ".001", params, {}, checkpoint.CheckpointInfo(epoch=1, step=1, random_seed=0))
    net, _ = load_network(Config(settings), search=search, losses=False)
    net.begin_pass()
    found = net.run(feed).layers["output"].value
    trained.begin_pass()
    np.testing.assert_allclose(found, trained.run(feed).layers["output"].value, rtol=1e-5)
    assert (np.abs(found - first).max() > 1e-3) == (state == "keep_over_epoch_no_init")
    net.begin_pass()
    one = {"data": x[:1], "data/size0": np.array([4])}
    if state == "keep_over_epoch_no_init":
        with pytest.raises(
            DataError, match="keeps its state .* those of the training, but this one has 1 and .* had 2"
        ):
            net.run(one)
    else:
        np.testing.assert_allclose(net.run(one).layers["output"].value, first[:1], rtol=1e-5, atol=1e-6)


def test_order_of_a_search() -> None:
    """Longest first, which is faster, unless a state of the sequences before is kept."""

    class Data:
        name = "dev"
        endless = is_stream = False

        def seq_order(self, epoch: int) -> list[int]:
            return [2, 0, 1, 0]

        def seq_lengths(self) -> list[int]:
            return [5, 9, 7]

    assert searched(Data(), 1).tolist() == [1, 2, 0]
    assert searched(Data(), 1, in_order=True).tolist() == [2, 0, 1]
